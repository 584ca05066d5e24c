"""Files that cannot be read: named, counted, and left out or the end of a run."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

__all__ = ["Broken", "Damage", "report", "require_full"]

_NAMED = 20  # broken things named one by one


@dataclass(frozen=True)
class Broken:
    """An example that cannot be read. Workers hand it on as data: an exception would arrive with a foreign traceback."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def report(broken: Sequence[Broken]) -> None:
    """Name what is left out on standard error; of very many, the first."""
    with suppress(OSError):  # nobody listens any more, which is no reason to stop
        for item in broken[:_NAMED]:
            print(f"left out, {item}", file=sys.stderr)
        if len(broken) > _NAMED:
            print(f"left out, {len(broken) - _NAMED} more", file=sys.stderr)


class Damage(dict[str, str]):
    """What is broken so far, with the reason: nothing is named twice, and at the first it stops if so configured."""

    def __init__(self, on_broken: str, is_first: bool = True) -> None:
        super().__init__()
        self.on_broken, self.is_first = on_broken, is_first

    def note(self, found: Sequence[Broken], shared: bool = False) -> None:
        """Add what was found. What every process has found (`shared`) is named by the first."""
        if found and self.on_broken == "stop":
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise ValueError(f"{found[0]}{more}; mend or remove it, or go on without it (--data.on-broken skip)")
        new = {item.name: item for item in found if item.name not in self}
        if self.is_first or not shared:
            report(list(new.values()))
        self.update({name: item.reason for name, item in new.items()})


def require_full(batch: Any, size: int) -> None:
    """Broken examples are replaced by others; a batch that is still short has too many of them."""
    if len(batch) < size:
        raise ValueError(f"too many broken pictures in a row, the last {batch.broken[-1]}; mend or remove them")
