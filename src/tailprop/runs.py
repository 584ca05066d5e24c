"""The run folder: what was run, how it went, and what came out.

config.yaml        every setting, resolved
manifest.json      command, versions, hardware, commit, hashes of settings and data, cost; each time it was continued
metrics.jsonl      a line every few steps and after every epoch
history.csv        the epochs of a finished run as a table
last.pt, best.pt   checkpoints
model.safetensors  the best weights
tensorboard/       events
launch.txt         under torchrun, the name of the launch: its restarts go on by themselves
.lock              locked while a process trains here
"""

import csv
import errno
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import yaml
from safetensors import SafetensorError, safe_open

from tailprop import checkpoint
from tailprop.config import config_hash

try:
    import fcntl
except ImportError:  # not a POSIX system: runs have to be kept apart by hand
    fcntl = None  # type: ignore[assignment]

__all__ = ["RunFolder", "comparable", "find_settings", "portable", "read_config", "read_notes", "read_settings", "task_of"]

_DRAWN = ("learning.png", "confusion.png", "operator.png", "pictures.jpg", "restored.png", "coco_results.json")
# what a resumed run may change, as it changes nothing that is learned
_FREE = {
    "check_gradients",
    "grad_checkpointing",
    "out",
    "resume",
    "overwrite",
    "device",
    "threads",
    "save_every",
    "log_every",
    "tensorboard",
}
_OF_A_MACHINE = {"root", "train", "test", "cache", "unpack", "keep_gb"}  # of the data: no business of the weights
_FREE_OF_DATA = {"workers", "root", "cache", "download", "unpack", "keep_gb", "on_broken"}


class RunFolder:
    """Paths of a run, and its log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.manifest, self.metrics = path / "config.yaml", path / "manifest.json", path / "metrics.jsonl"
        self.last, self.best, self.weights = path / "last.pt", path / "best.pt", path / "model.safetensors"
        self.tensorboard, self.launch, self.history = path / "tensorboard", path / "launch.txt", path / "history.csv"
        self.lock = path / ".lock"
        self._locked: IO[str] | None = None

    def check(self, settings: dict[str, Any], resume: bool, overwrite: bool) -> None:
        """Refuse a folder that holds another run, or something else; nothing is changed in it yet."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; the run needs a folder")
        if self.lock.exists():
            self.hold()
        before = read_config(self.path) if self.config.exists() else None  # refuses a config.yaml that is not ours
        held = any(path.exists() for path in self._ours())
        if held and not overwrite and not resume:
            raise ValueError(
                f"{self.path} holds a run; go on with it (--run.resume), replace it (--run.overwrite) or change --run.out"
            )
        if resume and not self.last.exists() and (self.best.exists() or self.weights.exists()):
            raise ValueError(
                f"{self.last} is gone, so there is nothing to go on from, and a new start would replace the best weights; "
                "start from them in another folder (--model.init, --run.out), or anew (--run.overwrite)"
            )
        if before is not None and resume:
            refuse_changes(before, settings, self.path)

    def begin(self, settings: dict[str, Any], overwrite: bool, launch: str = "") -> None:
        """Make the folder ready. Called when everything else is: a mistake in the settings must not cost the old run."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from None
        self.hold()
        for path in self._ours():
            path.with_name(path.name + checkpoint.PART).unlink(missing_ok=True)  # half written by a process that died
        if overwrite:
            self._remove()
        if launch:  # first: a process killed after config.yaml would leave a run that this launch does not know for its own
            checkpoint.write_atomically(self.launch, lambda part: part.write_text(launch))
        asked = {"resume": False, "overwrite": False}  # of this launch alone: the file is a recipe, too
        data = {name: _absolute(value) if name in ("root", "cache") else value for name, value in settings["data"].items()}
        kept = yaml.safe_dump(settings | {"run": settings["run"] | asked, "data": data}, sort_keys=False)
        checkpoint.write_atomically(self.config, lambda part: part.write_text(kept))

    def _unusable(self, error: OSError) -> ValueError:
        return ValueError(f"cannot write into the run folder {self.path} ({error.strerror}); change --run.out")

    def hold(self) -> None:
        """Keep other processes from training here, until this one lets go or dies.

        By a record lock: `flock` would be inherited by loader processes, and outlive a killed run in them.
        """
        if fcntl is None or self._locked is not None:
            return
        try:
            file = self.lock.open("a")
        except OSError as error:
            raise self._unusable(error) from None
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise ValueError(
                    f"{self.path} is in use: another process is training in it; wait for it, or change --run.out"
                ) from None
            return  # a file system without locks
        self._locked = file

    def let_go(self) -> None:
        if self._locked is not None:
            self._locked.close()
            self._locked = None

    def is_of(self, launch: str) -> bool:
        """Whether the run was begun, or last resumed, by this launch of torchrun."""
        return bool(launch) and self.launch.is_file() and self.launch.read_text() == launch

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        checkpoint.write_json(self.manifest, manifest)

    def read_manifest(self) -> dict[str, Any]:
        """What stands in it; nothing where it is lost or damaged, for which no run shall fail."""
        try:
            found = json.loads(self.manifest.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def log(self, row: Mapping[str, Any]) -> None:
        with checkpoint.naming(self.metrics), self.metrics.open("a") as file:
            file.write(json.dumps({**row, "time": round(time.time(), 1)}) + "\n")

    def write_history(self, rows: Sequence[Mapping[str, float]]) -> None:
        """The epochs as a table, a column for each number there is."""
        names = list(dict.fromkeys(name for row in rows for name in row))

        def write(part: Path) -> None:
            with part.open("w", newline="") as file:
                table = csv.DictWriter(file, names, lineterminator="\n")
                table.writeheader()
                table.writerows({name: _short(value) for name, value in row.items()} for row in rows)

        checkpoint.write_atomically(self.history, write)

    def rewind(self, step: int, epochs: int) -> None:
        """Forget what was logged after the checkpoint that is resumed: it will be logged again.

        An epoch is logged at the step that ended it, so steps alone do not tell whether the checkpoint knows of it.
        """
        if not self.metrics.exists():
            return
        kept = [line for line in self.metrics.read_text().splitlines() if _is_known(line, step, epochs)]
        checkpoint.write_atomically(self.metrics, lambda part: part.write_text("".join(f"{line}\n" for line in kept)))

    def _ours(self) -> list[Path]:
        """The files a run writes; whatever else lies there is somebody's."""
        files = [self.config, self.manifest, self.metrics, self.last, self.best, self.weights, self.launch, self.history]
        return files + [self.path / name for name in _DRAWN]

    def _remove(self) -> None:
        for path in self._ours():
            path.unlink(missing_ok=True)
        shutil.rmtree(self.tensorboard, ignore_errors=True)


def read_config(folder: Path) -> dict[str, Any]:
    """The settings of a run."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise ValueError(f"{folder} is not a run folder: it has no config.yaml")
    try:
        settings = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError):
        settings = None
    if not _are_settings(settings):
        raise ValueError(f"{path} is not the config.yaml of a run of this program; choose another folder")
    return settings


def _absolute(value: Any) -> Any:
    """A place that is found from any other folder, too."""
    return str(Path(value).absolute()) if isinstance(value, str) and Path(value).exists() else value


def _are_settings(found: Any) -> bool:
    return isinstance(found, dict) and all(isinstance(found.get(part), dict) for part in ("model", "data"))


def find_settings(where: str | Path) -> dict[str, Any] | None:
    """The settings behind a run folder or a file of weights: those of the run around it, or what exported weights carry.

    A config.yaml that says something else than the weights is not theirs.
    """
    path = Path(where)
    folder = path if path.is_dir() else path.parent
    has_config = (folder / "config.yaml").is_file()
    text = read_notes(path).get("settings") if path.is_file() and path.suffix == ".safetensors" else None
    if text is None:
        return read_config(folder) if has_config else None
    try:
        carried: dict[str, Any] = json.loads(text)
    except ValueError:
        carried = {}
    if not _are_settings(carried):  # a note of somebody else's
        return read_config(folder) if has_config else None
    try:
        around = read_config(folder) if has_config else carried
        return around if comparable(portable(around)) == comparable(carried) else carried
    except ValueError:  # somebody else's config.yaml
        return carried


def read_settings(where: str | Path) -> dict[str, Any]:
    """The same, where they are needed."""
    settings = find_settings(where)
    if settings is None:
        raise ValueError(f"{where} is neither in a run folder with a config.yaml nor weights that carry their settings")
    return settings


def read_notes(weights: Path) -> dict[str, str]:
    """What exported weights say of themselves; those of a .pt file are found in the export beside it."""
    if weights.suffix != ".safetensors":
        sibling = weights.with_name("model.safetensors")
        return read_notes(sibling) if sibling.is_file() else {}
    try:
        with safe_open(weights, framework="pt") as file:
            return file.metadata() or {}
    except SafetensorError:
        raise ValueError(f"{weights} is not a file of safetensors, or is damaged") from None


def task_of(where: str) -> str | None:
    """The task of a run folder or of a file of weights; none where nobody says."""
    path = Path(where)
    is_weights = path.is_file() and path.suffix in (".pt", ".safetensors")
    if where.startswith("-") or not (path.is_dir() or is_weights):
        return None
    try:
        settings = find_settings(path)
    except ValueError:  # the config.yaml of another program, perhaps in a folder of pictures
        return None
    return None if settings is None else str(settings.get("task", "classify"))


def portable(settings: dict[str, Any]) -> dict[str, Any]:
    """What weights carry with them: all but what belongs to one machine, its folders and how it ran."""
    kept = {name: value for name, value in settings["data"].items() if name not in _OF_A_MACHINE}
    data = {name: value for name, value in kept.items() if not (isinstance(value, str) and Path(value).is_absolute())}
    if data.get("classes") != "ade20k":  # a file on this machine; the weights name their classes themselves
        data.pop("classes", None)
    return {k: v for k, v in settings.items() if k != "run"} | {"data": data, "model": settings["model"] | {"init": None}}


def comparable(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings a run goes on with. How a step is divided is free; how many pictures it has stands in the checkpoint."""
    return {
        **settings,
        "optim": {k: v for k, v in settings.get("optim", {}).items() if k not in ("batch", "accumulate")},
        "run": {k: v for k, v in settings.get("run", {}).items() if k not in _FREE},
        "data": {k: v for k, v in settings["data"].items() if k not in _FREE_OF_DATA},
    }


def refuse_changes(before: dict[str, Any], now: dict[str, Any], where: Path) -> None:
    """A run goes on as it began."""
    before, now = comparable(before), comparable(now)
    if config_hash(before) == config_hash(now):
        return
    changed = sorted(set(_flatten(before)) ^ set(_flatten(now)))
    names = sorted({name for name, _ in changed})
    raise ValueError(f"{where} was begun with other settings ({', '.join(names)}); repeat them, or change --run.out")


def _flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for name, value in values.items():
        if isinstance(value, dict) and value:
            rows += _flatten(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", repr(value)))
    return rows


def _short(value: float) -> str:
    return f"{value:.6g}"


def _is_known(line: str, step: int, epochs: int) -> bool:
    """Whether a line was logged before a checkpoint of so many steps and closed epochs."""
    try:
        row = json.loads(line)
        return int(row["step"]) <= step and (row["kind"] != "epoch" or row["epoch"] <= epochs)
    except (ValueError, KeyError, TypeError):
        return False  # half a line, from a process that died while writing it
