"""The settings behind a run folder or exported weights, and which of them may change."""

import json
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError, safe_open

import tailprop.backbone.model  # noqa: F401 - registers the models
from tailprop.engine.config import config_hash

__all__ = [
    "comparable",
    "find_settings",
    "portable",
    "read_config",
    "read_notes",
    "read_settings",
    "refuse_changes",
    "task_of",
    "weights_file",
]

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


def weights_file(where: str) -> Path:
    """The weights meant by a run folder or a file."""
    path = Path(where)
    if path.is_dir():
        found = next((path / name for name in ("model.safetensors", "best.pt", "last.pt") if (path / name).is_file()), None)
        if found is None:
            raise ValueError(f"{path} holds no model.safetensors, best.pt or last.pt")
        return found
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}")
    return path
