"""Broken files: reported and counted, then skipped, or an error that stops the run."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tailprop.utils.text import say

__all__ = ["Broken", "BrokenFiles", "check_batch_full", "print_broken"]

_NAMED = 20  # broken files that are printed one by one


@dataclass(frozen=True)
class Broken:
    """An example that cannot be read. Workers return it as data: an exception would arrive with the worker's traceback."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def print_broken(broken: Sequence[Broken]) -> None:
    """Print skipped files on standard error, at most the first few by name."""
    with suppress(OSError):  # the pipe is closed, which should not stop the run
        for item in broken[:_NAMED]:
            say(f"skipped {item}", error=True)
        if len(broken) > _NAMED:
            say(f"skipped {len(broken) - _NAMED} more", error=True)


class BrokenFiles(dict[str, str]):
    """Broken files found so far, with the reason. Each is printed once; with on_broken "stop", the first one raises."""

    def __init__(self, on_broken: str, is_main: bool = True) -> None:
        super().__init__()
        self.on_broken, self.is_main = on_broken, is_main

    def record(self, found: Sequence[Broken], shared: bool = False) -> None:
        """Add broken files. Those that every process has found (`shared`) are printed by rank 0."""
        if found and self.on_broken == "stop":
            others = len({item.name for item in found}) - 1  # a file may occur twice, once as a replacement for another
            more = f" (and {others} more)" if others else ""
            raise ValueError(f"{found[0]}{more}; fix or remove it, or skip it (--data.on-broken skip)")
        new = {item.name: item for item in found if item.name not in self}
        if self.is_main or not shared:
            print_broken(list(new.values()))
        self.update({name: item.reason for name, item in new.items()})


def check_batch_full(batch: Any, size: int) -> None:
    """Raise if a batch is still incomplete after its broken examples were replaced by others."""
    if len(batch) < size:
        raise ValueError(f"too many broken images in a row, the last is {batch.broken[-1]}; fix or remove them")
