"""Files that cannot be read: named, counted, and left out or the end of a run."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

__all__ = ["Broken", "BrokenFiles", "check_batch_full", "print_broken"]

_NAMED = 20  # broken things named one by one


@dataclass(frozen=True)
class Broken:
    """An example that cannot be read. Workers hand it on as data: an exception would arrive with a foreign traceback."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def print_broken(broken: Sequence[Broken]) -> None:
    """Name what is left out on standard error; of very many, the first."""
    with suppress(OSError):  # the pipe is closed, which is no reason to stop
        for item in broken[:_NAMED]:
            print(f"left out, {item}", file=sys.stderr)
        if len(broken) > _NAMED:
            print(f"left out, {len(broken) - _NAMED} more", file=sys.stderr)


class BrokenFiles(dict[str, str]):
    """What is broken so far, with the reason: nothing is named twice, and at the first it stops if so configured."""

    def __init__(self, on_broken: str, is_main: bool = True) -> None:
        super().__init__()
        self.on_broken, self.is_main = on_broken, is_main

    def record(self, found: Sequence[Broken], shared: bool = False) -> None:
        """Add what was found. What every process has found (`shared`) is named by the first."""
        if found and self.on_broken == "stop":
            others = len({item.name for item in found}) - 1  # a file may be met twice, as one that shall replace another
            more = f" (and {others} more)" if others else ""
            raise ValueError(f"{found[0]}{more}; fix or remove it, or leave it out (--data.on-broken skip)")
        new = {item.name: item for item in found if item.name not in self}
        if self.is_main or not shared:
            print_broken(list(new.values()))
        self.update({name: item.reason for name, item in new.items()})


def check_batch_full(batch: Any, size: int) -> None:
    """Broken examples are replaced by others; a batch that is still short has too many of them."""
    if len(batch) < size:
        raise ValueError(f"too many broken images in a row, the last {batch.broken[-1]}; fix or remove them")
