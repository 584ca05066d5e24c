"""The settings and weights behind a run folder or an exported file."""

import json
from pathlib import Path
from typing import Any, TypeVar

import yaml
from safetensors import SafetensorError, safe_open

from tailprop.engine.settings import build, comparable, config_hash, differences, portable

__all__ = [
    "check_unchanged",
    "find_settings",
    "find_task_name",
    "find_weights",
    "read_config",
    "read_metadata",
    "read_settings",
]

T = TypeVar("T")
DEFAULT_TASK = "classify"  # of settings that name none


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


def _are_settings(found: Any) -> bool:
    return isinstance(found, dict) and all(isinstance(found.get(part), dict) for part in ("model", "data"))


def find_settings(where: str | Path, kind: type | None = None) -> dict[str, Any] | None:
    """The settings behind a run folder or a file of weights: those of the run around it, or what exported weights carry.

    `kind`, the dataclass of the task's settings, tells whether a config.yaml beside weights is theirs; without it what the
    weights carry themselves is believed.
    """
    path = Path(where)
    folder = path if path.is_dir() else path.parent
    metadata = read_metadata(path) if path.is_file() and path.suffix == ".safetensors" else {}
    carried = _parse(metadata.get("settings"))
    if carried is None:
        return read_config(folder) if (folder / "config.yaml").is_file() else None
    try:
        around = read_config(folder)
        return around if kind is not None and _is_same_run(carried, around, kind) else carried
    except ValueError:  # there is no config.yaml, or it is another program's
        return carried


def _parse(text: str | None) -> dict[str, Any] | None:
    """The settings in a line of metadata; none if it is not ours."""
    try:
        settings = json.loads(text or "null")
    except ValueError:
        return None
    return settings if _are_settings(settings) else None


def _is_same_run(carried: dict[str, Any], around: dict[str, Any], kind: type) -> bool:
    exported: Any = build(kind, portable(build(kind, around)))
    return comparable(exported) == comparable(build(kind, carried))


def read_settings(where: str | Path, kind: type[T]) -> T:
    """The same as an instance of their dataclass, where they are needed."""
    settings = find_settings(where, kind)
    if settings is None:
        raise ValueError(f"{where} is neither in a run folder with a config.yaml nor weights that carry their settings")
    return build(kind, settings)


def read_metadata(weights: Path) -> dict[str, str]:
    """What exported weights say of themselves; those of a .pt file are found in the export beside it."""
    if weights.suffix != ".safetensors":
        sibling = weights.with_name("model.safetensors")
        return read_metadata(sibling) if sibling.is_file() else {}
    try:
        with safe_open(weights, framework="pt") as file:
            return file.metadata() or {}
    except SafetensorError:
        raise ValueError(f"{weights} is not a safetensors file, or is corrupt") from None


def find_task_name(where: str | Path) -> str | None:
    """The task of a run folder or of a file of weights; none where nobody says."""
    path = Path(where)
    is_weights = path.is_file() and path.suffix in (".pt", ".safetensors")
    if str(where).startswith("-") or not (path.is_dir() or is_weights):
        return None
    try:
        settings = find_settings(path)
    except ValueError:  # the config.yaml of another program, perhaps in a folder of images
        return None
    return None if settings is None else str(settings.get("task", DEFAULT_TASK))


def check_unchanged(before: dict[str, Any], now: Any, where: Path) -> None:
    """Refuse to resume a run with settings that change what is learned; `before` may use earlier names of them."""
    old, new = comparable(build(type(now), before)), comparable(now)
    if config_hash(old) == config_hash(new):
        return
    changed = differences(old, new)
    if changed == ["optim.epochs"]:
        raise ValueError(
            f"{where} was begun with {before['optim']['epochs']} epochs, and its learning rate follows them (optim.epochs); to "
            f"train longer, start a new run from its weights: --model.init {where} --run.out OTHER, without --run.resume"
        )
    raise ValueError(f"{where} was begun with other settings ({', '.join(changed)}); repeat them, or change --run.out")


def find_weights(where: str | Path) -> Path:
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
