"""Argument checks whose errors say what is wrong and how to fix it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

# What a result never replaces: weights, settings and logs by their suffix, other files of a run by their name, and whatever has
# its hash beside it.
KEPT: Final = (".pt", ".pth", ".safetensors", ".onnx", ".yaml", ".yml", ".jsonl", ".sha256")
_OF_A_RUN: Final = ("manifest.json", "config.json", "history.csv", "launch.txt")
__all__ = ["check_at_least", "check_between", "check_choice", "check_output_file", "check_output_folder"]


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(map(repr, choices))}")


def check_at_least(name: str, value: float, least: float) -> None:
    if not value >= least:  # written so that NaN is rejected too
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} must be between {least} and {most}, got {value}")


def check_output_file(option: str, path: Path | None) -> None:
    """Raise before long work if the output file cannot be written at `path`."""
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{option} {path} is a folder; name a file")
    if path.is_file() and _is_kept(path.resolve()):
        raise ValueError(f"{option}: {path} would be replaced; results do not replace weights, settings or logs of runs")
    if path.is_symlink() and not path.exists():
        raise ValueError(f"{option}: {path} is a link to {path.readlink()}, which does not exist; remove the link")
    check_output_folder(option, path.parent)


def _is_kept(path: Path) -> bool:
    is_of_a_run = path.name in _OF_A_RUN and path.with_name("config.yaml").exists()
    return path.suffix.lower() in KEPT or is_of_a_run or path.with_name(f"{path.name}.sha256").exists()


def check_output_folder(option: str, path: Path) -> None:
    """Raise if `path` cannot be a folder; it need not exist."""
    for at in (path, *path.parents):
        if at.is_symlink() and not at.exists():
            raise ValueError(f"{option}: {at} is a link to {at.readlink()}, which does not exist; remove the link")
        if at.exists():
            if not at.is_dir():
                raise ValueError(f"{option}: {at} is a file; name a folder")
            return
