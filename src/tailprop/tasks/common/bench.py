"""Code that all benchmarks share: interleaved timing, tables with provenance, the cost per image of several backbones."""

import csv
import io
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from tailprop.runtime.allocator import keep_freed_memory
from tailprop.tasks.common.models import check_model
from tailprop.utils.files import make_folder, write_atomically
from tailprop.utils.terminal import Console, Table

__all__ = ["ImageCost", "check_bench", "print_costs", "print_table", "time_in_turn", "use_cpu", "write_costs", "write_rows"]


def check_bench(models: Sequence[str], device: str) -> None:
    if not models:
        raise ValueError("no model to benchmark; give at least one")
    for model in models:
        check_model(model)
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("no CUDA device is visible; use --device cpu")


def use_cpu(threads: int) -> str:
    """Set the number of threads and let malloc keep freed memory, as every command does; returns what it does with it."""
    torch.set_num_threads(threads)
    return "kept" if keep_freed_memory() else "returned"


def time_in_turn(
    steps: Mapping[str, Callable[[], object]],
    rounds: int,
    device: str,
    description: str,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every step in every round; a round runs each step once, after one warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for index in track(range(rounds + 1), description=description, transient=True):
        for name, step in steps.items():
            began = clock()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            if index > 0:
                seconds[name].append(clock() - began)
    return seconds


def print_table(table: Table, where: Mapping[str, str]) -> None:
    """Print a table, and below it the provenance of its numbers."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # in a pipe nothing is wrapped
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in where.items()), style="dim")


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], where: Mapping[str, str] | None = None) -> None:
    """Write rows with the same columns as CSV; the provenance in `where` is added to every row."""
    full = [{**row, **(where or {})} for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(full[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(full)
    make_folder(path.parent)
    write_atomically(path, lambda part: part.write_text(text.getvalue(), newline=""))


@dataclass(frozen=True)
class ImageCost:
    """The cost of one image for a network with some backbone."""

    model: str
    parameters: int
    macs: int
    paper_gmacs: float | None  # the paper's number
    seconds: Sequence[float] = ()  # per image, in each round
    memory_gb: float | None = None  # peak memory

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Images per second in the best and in the median round."""
        if not self.seconds:
            return None, None
        return 1 / min(self.seconds), 1 / statistics.median(self.seconds)

    def row(self, first: "ImageCost") -> dict[str, str]:
        """The numbers as text, with the rate relative to the first backbone."""
        (best, median), first_best = self.rates, first.rates[0]
        return {
            "model": self.model,
            "parameters": str(self.parameters),
            "macs": str(self.macs),
            "paper_gmacs": _text(self.paper_gmacs, "g"),
            "over_paper": _text(self.paper_gmacs and self.macs / 1e9 / self.paper_gmacs, ".3f"),
            "img_per_s_best": _text(best, ".4g"),
            "img_per_s_median": _text(median, ".4g"),
            "first_over_this": _text(first_best / best if best and first_best else None, ".3f"),
            "memory_gb": _text(self.memory_gb, ".2f"),
        }


def _text(number: float | None, style: str) -> str:
    return "" if number is None else format(number, style)


def print_costs(costs: Sequence[ImageCost], where: Mapping[str, str]) -> None:
    shown = ("paper_gmacs", "img_per_s_best", "img_per_s_median", "first_over_this", "memory_gb")
    table = Table("backbone", "GMACs", "paper's", "img/s", "median", "first / this", "GB")  # the file has more
    table.columns[0].overflow = "fold"
    for cost in costs:
        row = cost.row(costs[0])
        table.add_row(cost.model, f"{cost.macs / 1e9:.1f}", *(row[name] for name in shown))
    print_table(table, where)


def write_costs(path: Path, costs: Sequence[ImageCost], where: Mapping[str, str]) -> None:
    write_rows(path, [cost.row(costs[0]) for cost in costs], where)
