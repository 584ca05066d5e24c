"""The Run page: what a run folder says, read only, while it trains or later."""

import io
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final

from PIL import Image

from tailprop.app.library import Entry, Library
from tailprop.app.store import check_size
from tailprop.data.images import describe_error, is_image, open_image
from tailprop.engine.run_folder import RunFolder
from tailprop.engine.run_settings import WEIGHTS, find_settings, read_config
from tailprop.engine.settings import config_hash
from tailprop.tasks import find_spec
from tailprop.utils.parsing import parse_json, read_bytes

__all__ = ["Logs", "artifact", "compare_settings", "describe", "listing", "trained_for"]

TRAINING_SECONDS: Final = 90  # since the last line of the log
MOST_ROWS: Final = 20_000  # of a log that are sent at once
_MOST_TEXT: Final = 4_000  # characters of a value of the manifest
_KEPT_LOGS: Final = 8
_HASH: Final = "manifest_hash"
# A run is known by these, wherever it is.
_OWN: Final = ("run.out", "run.resume", "run.overwrite")


class Logs:
    """The parsed logs of a few runs, read again when the file has changed."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, tuple[tuple[int, int], list[dict[str, Any]]]] = OrderedDict()
        self._lock = Lock()

    def rows(self, entry: Entry) -> list[dict[str, Any]]:
        folder = RunFolder(entry.path)
        if not folder.metrics.is_file():
            return []
        state = folder.metrics.stat()
        stamp = (state.st_size, state.st_mtime_ns)
        with self._lock:
            kept = self._rows.get(entry.key)
            if kept is None or kept[0] != stamp:
                kept = self._rows[entry.key] = (stamp, [_numbers(row) for row in folder.read_log()])
            self._rows.move_to_end(entry.key)
            while len(self._rows) > _KEPT_LOGS:
                self._rows.popitem(last=False)
        return kept[1]

    def since(self, entry: Entry, after: int) -> dict[str, Any]:
        """The rows that a page does not have yet; all of them if the log is shorter than what it has, as after resuming."""
        rows = self.rows(entry)
        begin = after if 0 <= after <= len(rows) else 0
        return {"begin": begin, "rows": rows[begin : begin + MOST_ROWS], "total": len(rows), "state": state_of(entry)}


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    """The kind of a row and its finite numbers."""
    numbers = {k: v for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)}
    return {"kind": str(row["kind"]), **numbers}


def state_of(entry: Entry) -> str:
    """Whether the run trains, has finished, or stopped before."""
    folder = RunFolder(entry.path)
    if not folder.metrics.is_file():
        return "not started"
    changed = folder.metrics.stat().st_mtime
    if folder.history.is_file() and folder.history.stat().st_mtime >= changed - 1:
        return "finished"
    return "training" if time.time() - changed < TRAINING_SECONDS else "stopped"


def listing(library: Library) -> list[dict[str, Any]]:
    """What the page can choose from."""
    rows = []
    for entry in library.entries():
        row = {"id": entry.key, "name": entry.name, "task": entry.task, "shipped": entry.is_shipped}
        rows.append(row | {"run": entry.is_run, "weights": entry.has_weights, "state": state_of(entry) if entry.is_run else ""})
    return rows


def describe(entry: Entry) -> dict[str, Any]:
    """Settings, manifest, metrics and pictures of a run."""
    spec = find_spec(entry.task)
    manifest, problem = _read_manifest(entry)
    names = [name for name in spec.artifacts if is_image(entry.path / name) and (entry.path / name).is_file()]
    return {
        "id": entry.key,
        "name": entry.name,
        "task": entry.task,
        "title": spec.title,
        "state": state_of(entry),
        "metric": spec.metric,
        "metrics": dict(spec.metrics),
        "settings": flat(read_config(entry.path)),
        "manifest": flat(manifest),
        "problem": problem,
        "pictures": names,
    }


def _read_manifest(entry: Entry) -> tuple[dict[str, Any], str]:
    """The manifest, and what is wrong with it. The page writes nothing, so a corrupt one stays where it is."""
    path = RunFolder(entry.path).manifest
    if not path.is_file():
        return {}, "this run has no manifest"
    try:
        _check_inside(entry, path)
        found = parse_json(read_bytes(path), path.name)
        content = {name: value for name, value in found.items() if name != _HASH}
    except (OSError, ValueError, AttributeError) as error:
        return {}, f"the manifest cannot be read: {error}"
    intact = found.get(_HASH, config_hash(content)) == config_hash(content)
    return content, "" if intact else "the manifest does not match its checksum: it is corrupt, or was edited"


def flat(values: Any, prefix: str = "") -> dict[str, str]:
    """Nested values as dotted names with texts."""
    if isinstance(values, dict) and (values or not prefix):
        found: dict[str, str] = {}
        for name, value in values.items():
            found |= flat(value, f"{prefix}.{name}" if prefix else str(name))
        return found
    if isinstance(values, list) and any(isinstance(value, dict) for value in values):
        found = {}
        for number, value in enumerate(values):
            found |= flat(value, f"{prefix}.{number + 1}")
        return found
    shown = ", ".join(map(str, values)) if isinstance(values, list) else "" if values is None else str(values)
    return {prefix: shown[:_MOST_TEXT]}


def trained_for(entry: Entry) -> dict[str, Any]:
    """The degradation that a restoration network was trained on, so that the page begins with it."""
    where = entry.path / WEIGHTS[0] if entry.is_shipped else entry.path
    data = (find_settings(where) or {}).get("data", {})
    names = ("degradation", "sigma", "quality", "scale", "sigma_range", "quality_range")
    return {name: data.get(name) for name in names}


def compare_settings(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The settings in which runs differ, with the value of each run."""
    settings = [flat(read_config(entry.path)) for entry in entries]
    names = sorted({name for values in settings for name in values if name not in _OWN})
    rows = ({"name": name, "values": [values.get(name, "") for values in settings]} for name in names)
    return [row for row in rows if len(set(row["values"])) > 1]


def artifact(entry: Entry, name: str) -> bytes:
    """A picture that the run left, as PNG; only those that its task is known to leave, and none through a link out of it."""
    path = entry.path / name
    if name not in find_spec(entry.task).artifacts or not is_image(path) or not path.is_file():
        raise ValueError("this run has no such picture")
    _check_inside(entry, path)
    buffer = io.BytesIO()
    try:
        with open_image(path) as file:
            check_size(*file.size, name)
            image: Image.Image = file.convert("RGB")
    except Exception as error:  # decoders raise many kinds of errors on corrupt files
        raise ValueError(f"{name} cannot be read: {describe_error(error)}") from None
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _check_inside(entry: Entry, path: Path) -> None:
    if entry.path.resolve() not in path.resolve().parents:
        raise ValueError(f"{path.name} is a link out of the run folder")
