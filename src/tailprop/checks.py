"""Refusals that say what is wrong and how to mend it."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "check_at_least",
    "check_between",
    "check_choice",
    "check_model",
    "check_output_file",
    "check_output_folder",
    "loader_died",
    "memory_missing",
]


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(map(repr, choices))}")


def check_at_least(name: str, value: float, least: float) -> None:
    if not value >= least:  # written so that NaN is refused too
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} lies between {least} and {most}, got {value}")


def check_output_file(option: str, path: Path | None) -> None:
    """Before long work: a file that cannot be written where it is wanted."""
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{option} {path} is a folder; name a file")
    check_output_folder(option, path.parent)


def check_output_folder(option: str, path: Path) -> None:
    """The same for a folder, which need not be there."""
    for at in (path, *path.parents):
        if at.exists():
            if not at.is_dir():
                raise ValueError(f"{option}: {at} is a file; name a folder")
            return


def check_model(name: str) -> None:
    import timm

    import tailprop.backbone  # noqa: F401 - registers ours

    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "`tailprop models` lists ours"
        raise ValueError(f"timm has no model {name!r}; {hint}")


def loader_died(error: BaseException) -> str | None:
    """How a loader process ended, in PyTorch's words, if that is what an error is about."""
    found = re.search(r"DataLoader worker \(pid.*?\) (is killed by signal: [\w ]+|exited unexpectedly)", str(error))
    return found[1].rstrip(". ") if found else None


def memory_missing(error: BaseException) -> str | None:
    """What is said of memory that could not be had, by PyTorch ("Tried to allocate 2.00 GiB"), CUDA or Python; else nothing."""
    if found := re.search(r"tried to allocate (\S+ \w+)", str(error), re.IGNORECASE):
        return f"{found[1]} more were asked for"
    if isinstance(error, MemoryError) or re.search("out of memory|ALLOC_FAILED", str(error)):
        return str(error).splitlines()[0] if str(error) else "of the machine"
    return None
