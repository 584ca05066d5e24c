"""Run folders and weights that the page may use: those the command line named, those below --runs, and the shipped models.

The page knows them by a key. It never sends a path.
"""

import glob
import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from tailprop.engine.run_settings import WEIGHTS, find_task_name

if TYPE_CHECKING:
    from tailprop.studies.figures.network import Network

__all__ = ["Entry", "Library", "Loaded"]

SHIPPED: Final = Path(__file__).parents[1] / "models"
_DEEPEST: Final = 4  # folders below --runs
_MOST_RUNS: Final = 500
_KEPT: Final = 3  # loaded models


@dataclass(frozen=True)
class Entry:
    """A run folder, a weights file or a shipped model."""

    name: str
    path: Path
    task: str
    is_shipped: bool = False

    @property
    def key(self) -> str:
        return hashlib.sha256(str(self.path.absolute()).encode(errors="surrogateescape")).hexdigest()[:16]

    @property
    def is_run(self) -> bool:
        return (self.path / "config.yaml").is_file()

    @property
    def has_weights(self) -> bool:
        return self.path.is_file() or any((self.path / name).is_file() for name in WEIGHTS)

    @property
    def weights_stamp(self) -> tuple[int, ...]:
        """Changes when the weights do."""
        files = [self.path, *(self.path / name for name in WEIGHTS)]
        return tuple(file.stat().st_mtime_ns for file in files if file.is_file())


@dataclass(frozen=True)
class Loaded:
    """A model in memory."""

    entry: Entry
    stamp: tuple[int, ...]
    predictor: Any  # a Predictor
    network: "Network | None"  # None if it has no layers of this package
    why_not: str = ""
    lock: Any = None

    @contextmanager
    def in_use(self, seconds: float = -1) -> Iterator[None]:
        """A model serves one request at a time, because figures hook into it; a view does not wait for a long job."""
        if not self.lock.acquire(timeout=seconds):
            raise ValueError(f"{self.entry.name} is busy with another job of the page; wait for it, or cancel it")
        try:
            yield
        finally:
            self.lock.release()


class Library:
    """What is there now: the folder is searched again for every list, because runs begin while the page is open."""

    def __init__(self, named: Sequence[str], runs: Path) -> None:
        self.runs = runs
        self.named = [entry for given in named for entry in _named(given)]
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()
        self._lock = RLock()

    def entries(self) -> list[Entry]:
        """Shipped models, named ones, and those below --runs, each once."""
        found: dict[str, Entry] = {}
        for entry in (*_shipped(), *self.named, *self._below()):
            found.setdefault(entry.key, entry)
        return list(found.values())

    def _below(self) -> Iterator[Entry]:
        for folder in sorted(_run_folders(self.runs), key=_newest_first)[:_MOST_RUNS]:
            task = _task_of(folder)
            if task is not None:
                yield Entry(str(folder.relative_to(self.runs)) if folder != self.runs else folder.name, folder, task)

    def find(self, key: str) -> Entry:
        entry = next((entry for entry in self.entries() if entry.key == key), None)
        if entry is None:
            raise ValueError("this run or model is no longer there; reload the page")
        return entry

    def load(self, key: str) -> Loaded:
        """A model, kept in memory until its weights change or others are used."""
        entry = self.find(key)
        if not entry.has_weights:
            raise ValueError(f"{entry.name} has no weights yet; wait for its first checkpoint")
        with self._lock:
            kept = self._loaded.get(key)
            if kept is None or kept.stamp != entry.weights_stamp:
                kept = self._loaded[key] = _load(entry)
            self._loaded.move_to_end(key)
            while len(self._loaded) > _KEPT:
                self._loaded.popitem(last=False)
            return kept


def _newest_first(folder: Path) -> float:
    try:
        return -(folder / "config.yaml").stat().st_mtime
    except OSError:  # a link that leads nowhere, or it was removed meanwhile
        return 0.0


def _task_of(folder: Path) -> str | None:
    """The task of a run; None if it has none. A folder that cannot be read does not hide the others."""
    try:
        return find_task_name(folder, "classify")
    except (ValueError, OSError):
        return None


def _named(given: str) -> list[Entry]:
    """The run or the weights of this name, or the runs that match a pattern."""
    if Path(given).exists() or not set("*?[") & set(given):
        return [_entry(Path(given), given)]
    matches = sorted(glob.glob(given))  # noqa: PTH207 - a pattern may be absolute
    found = [_entry(Path(match), match) for match in matches if find_task_name(match, "classify") is not None]
    if not found:
        raise ValueError(f"no run matches {given!r}")
    return found


def _entry(path: Path, name: str) -> Entry:
    if not path.exists():
        raise ValueError(f"no run folder or weights file at {name}")
    task = find_task_name(path, "classify")
    if task is None:
        raise ValueError(f"{name} is neither a run folder, which has a config.yaml, nor a file of weights with settings")
    return Entry(name.rstrip("/"), path, task)


def _shipped() -> Iterator[Entry]:
    for weights in sorted(SHIPPED.glob(f"*/{WEIGHTS[0]}")):
        if (task := _task_of(weights)) is not None:
            yield Entry(weights.parent.name, weights.parent, task, is_shipped=True)


def _run_folders(root: Path) -> Iterator[Path]:
    """Folders with a config.yaml, not deeper than a few levels; links are not followed."""
    for where, below, names in os.walk(root):
        folder = Path(where)
        if "config.yaml" in names:
            yield folder
            below.clear()
        if len(folder.relative_to(root).parts) >= _DEEPEST:
            below.clear()
        below[:] = sorted(name for name in below if not name.startswith("."))


def _load(entry: Entry) -> Loaded:
    from threading import Lock

    from tailprop.studies.figures.checkpoints import load_predictor
    from tailprop.studies.figures.network import load_network

    where = str(entry.path / WEIGHTS[0] if entry.is_shipped else entry.path)
    stamp = entry.weights_stamp
    predictor = load_predictor(where)
    try:
        network, why_not = load_network(where), ""
    except ValueError as error:
        network, why_not = None, str(error)
    return Loaded(entry, stamp, predictor, network, why_not, Lock())
