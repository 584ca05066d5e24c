"""Find the settings and weights of a run folder, an exported file or a shipped model.

PyTorch is imported where a weights file is read: the settings of a run folder need none.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from tailprop.engine.settings import build, comparable, config_hash, differences, portable
from tailprop.engine.shipped import locate, unknown_checkpoint
from tailprop.utils.parsing import parse_json, parse_yaml, sealed_text
from tailprop.utils.text import listed, say

__all__ = [
    "WEIGHTS",
    "check_unchanged",
    "find_settings",
    "find_task_name",
    "find_weights",
    "read_config",
    "read_metadata",
    "read_settings",
]

T = TypeVar("T")
WEIGHTS = ("model.safetensors", "best.pt", "last.pt")  # of a run folder, in the order in which they are looked for


def read_config(folder: Path) -> dict[str, Any]:
    """The settings of a run."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise ValueError(f"{folder} is not a run folder: it has no config.yaml")
    text = sealed_text(path)
    try:
        settings = parse_yaml(text, path)
    except ValueError:
        settings = None
    if not _are_settings(settings):
        raise ValueError(f"{path} is not the config.yaml of a tailprop run; choose another folder")
    return settings


def _are_settings(found: Any) -> bool:
    return isinstance(found, dict) and all(isinstance(found.get(part), dict) for part in ("model", "data"))


def find_settings(where: str | Path, kind: type | None = None) -> dict[str, Any] | None:
    """The settings of a run folder or a weights file: from its config.yaml, or from the metadata of exported weights.

    `kind`, the dataclass of the task's settings, is used to check that a config.yaml next to the weights belongs to them.
    Without it the metadata is preferred.
    """
    path = _weights_of_shipped(where)
    folder = path if path.is_dir() else path.parent
    metadata = read_metadata(path) if path.is_file() and path.suffix == ".safetensors" else {}
    embedded = _parse(metadata.get("settings"))
    if embedded is None:
        return read_config(folder) if (folder / "config.yaml").is_file() else None
    try:
        beside = read_config(folder)
        return beside if kind is not None and _is_same_run(embedded, beside, kind) else embedded
    except ValueError:  # there is no config.yaml, or it belongs to another program
        return embedded


def _weights_of_shipped(where: str | Path) -> Path:
    """The path; of a shipped model, which has no config.yaml, that of its weights."""
    path = locate(where)
    return path if path == Path(where) else path / WEIGHTS[0]


def _parse(text: str | None) -> dict[str, Any] | None:
    """Parse settings from metadata; None if they are not ours."""
    try:
        settings = parse_json(text or "null", "")
    except ValueError:
        return None
    return settings if _are_settings(settings) else None


def _is_same_run(embedded: dict[str, Any], beside: dict[str, Any], kind: type) -> bool:
    exported: Any = build(kind, portable(build(kind, beside)))
    return comparable(exported) == comparable(build(kind, embedded))


def read_settings(where: str | Path, kind: type[T]) -> T:
    """The settings as an instance of their dataclass; raises if there are none."""
    settings = find_settings(where, kind)
    if settings is None:
        raise ValueError(f"{where} has no settings: it is not in a run folder with a config.yaml, and its metadata has none")
    return build(kind, settings)


def read_metadata(weights: Path) -> dict[str, str]:
    """The metadata of exported weights; for a checkpoint, that of the model.safetensors beside it, or its own."""
    from safetensors import safe_open

    from tailprop.engine.integrity import check_intact, is_intact

    if weights.suffix != ".safetensors":
        sibling = weights.with_name("model.safetensors")
        return read_metadata(sibling) if is_intact(sibling) else _own_metadata(weights)
    check_intact(weights)
    with safe_open(weights, framework="pt") as file:
        return file.metadata() or {}


def _own_metadata(weights: Path) -> dict[str, str]:
    """The metadata in a checkpoint; earlier versions, and other programs, save none."""
    from tailprop.engine.checkpoint import read_checkpoint

    found = read_checkpoint(weights).get("metadata")
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def find_task_name(where: str | Path, default: str) -> str | None:
    """The task of a run folder or a weights file; None if it is unknown."""
    path = _weights_of_shipped(where)
    is_weights = path.is_file() and path.suffix in (".pt", ".safetensors")
    if str(where).startswith("-") or not (path.is_dir() or is_weights):
        return None
    if is_weights:
        from tailprop.engine.integrity import check_intact

        check_intact(path)  # else its task would be unknown, and the options of its task refused
    try:
        settings = find_settings(path)
    except ValueError:  # config.yaml of another program, for example in a folder of images
        return None
    return None if settings is None else str(settings.get("task", default))


def check_unchanged(before: dict[str, Any], now: Any, where: Path) -> None:
    """Raise if a resumed run would change settings that affect the result; `before` may use old names."""
    old, new = comparable(build(type(now), before)), comparable(now)
    if config_hash(old) == config_hash(new):
        return
    changed = differences(old, new)
    if changed == ["optim.epochs"]:
        raise ValueError(
            f"{where} was started with {before['optim']['epochs']} epochs, and its schedule depends on them (optim.epochs); to "
            f"train longer, start a new run from its weights: --model.init {where} --run.out OTHER, without --run.resume"
        )
    raise ValueError(f"{where} was started with other settings ({', '.join(changed)}); repeat them, or change --run.out")


def find_weights(where: str | Path) -> Path:
    """The weights file of a run folder, or the file itself. In a folder, a corrupt file is replaced by the next intact one."""
    path = locate(where)
    if path.is_dir():
        found = [path / name for name in WEIGHTS if (path / name).is_file()]
        if not found:
            raise ValueError(f"{path} contains no {listed(WEIGHTS[:-1])} or {WEIGHTS[-1]}")
        return _first_intact(found)
    if not path.is_file():
        raise ValueError(unknown_checkpoint(where))
    return path


@lru_cache(8)  # asked for several times, and what is said is said once
def _say_once(message: str) -> None:
    say(message, error=True)


def _first_intact(found: list[Path]) -> Path:
    from tailprop.engine.integrity import check_intact

    for place, path in enumerate(found):
        try:
            check_intact(path)
        except ValueError as error:
            if place == len(found) - 1:
                raise
            other = found[place + 1].name
            _say_once(f"{error}; reading {other} instead, {'of the last epoch' if other == 'last.pt' else 'the same weights'}")
        else:
            return path
    raise AssertionError
