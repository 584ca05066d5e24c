"""The table of a campaign: printed, saved as it grows, and told in one line every minute."""

import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.campaign.outcomes import Outcome, Tally

__all__ = ["Report", "print_table", "write_table"]

SHOWN: Final = 8  # wrong outcomes of an attack that are printed at the end
EVERY: Final = 60.0  # seconds between lines of progress


def write_table(path: Path, tallies: Sequence[Tally]) -> None:
    """The rows so far; a campaign that is cut off leaves its counts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["attack", "rounds", "minutes", "tried", *(outcome.value for outcome in Outcome)])
        table.writerows([tally.name, tally.rounds, f"{tally.seconds / 60:.1f}", *tally.cells()[1:]] for tally in tallies)
    part.replace(path)


def print_table(tallies: Sequence[Tally]) -> None:
    rows = [["attack", "tried", *(outcome.value for outcome in Outcome)], *(tally.cells() for tally in tallies)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]))
    for tally in tallies:
        for line in list(dict.fromkeys(tally.details))[:SHOWN]:
            print(f"wrong: {line!r}")


@dataclass
class Report:
    """Says how far a campaign is, and saves its table; wrong outcomes are printed when they are found."""

    table: Path | None
    began: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)
    wrongs: int = 0

    def update(self, tallies: Sequence[Tally]) -> None:
        details = [line for tally in tallies for line in tally.details]
        is_new, self.wrongs = len(details) > self.wrongs, len(details)
        if not is_new and time.monotonic() < self.said + EVERY:
            return
        self.said = time.monotonic()
        counts = ", ".join(f"{tally.name} {tally.counts.total()}" for tally in tallies)
        print(f"{(self.said - self.began) / 60:.1f} min, {self.wrongs} wrong: {counts}", flush=True)
        if is_new:
            print(f"wrong: {[tally.details[-1] for tally in tallies if tally.details]!r}"[:3000], flush=True)
        if self.table is not None:
            write_table(self.table, tallies)
