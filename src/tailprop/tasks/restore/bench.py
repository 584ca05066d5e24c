"""`tailprop bench restore`: time and memory per restored pixel, from small images to a megapixel.

Each size runs in a process of its own, because peak memory can only be measured for a whole process. Time is CPU time on one
thread: on a shared machine wall-clock time would include the load of other processes.
"""

import multiprocessing
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tailprop.runtime.memory import peak_bytes
from tailprop.runtime.provenance import provenance
from tailprop.tasks.common.bench import print_table, use_cpu, write_rows
from tailprop.tasks.restore.model import create_restorer
from tailprop.tasks.restore.options import BenchRestore
from tailprop.utils.terminal import Table

__all__ = ["Cost", "run"]


@dataclass(frozen=True)
class Cost:
    """Cost per pixel at one image size."""

    model: str
    side_px: int
    ns_per_px: float  # CPU time, best round
    bytes_per_px: float  # increase of the peak memory of the process


def run(options: BenchRestore) -> None:
    options.check()
    rows = []
    context = multiprocessing.get_context("spawn")
    for name in options.models:
        for side in options.sides_px:
            with context.Pool(1) as pool:
                rows.append(pool.apply(measure, (name, side, options.rounds, _settings(options, name))))
    where = provenance() | {"threads": "1", "dtype": "float32"}
    _print(rows, where)
    if options.out is not None:
        write_rows(options.out, [_rounded(row) for row in rows], where)


def _settings(options: BenchRestore, name: str) -> dict[str, Any]:
    given = dict(dim=options.dim, depths=(options.layers,) if options.layers else None)
    return {} if name == "dncnn" else {key: value for key, value in given.items() if value is not None}


def measure(name: str, side: int, rounds: int, settings: dict[str, Any]) -> Cost:
    """The cost of restoring one square gray image."""
    use_cpu(1)
    model = create_restorer(name, **settings).eval().to(memory_format=torch.channels_last)
    image = torch.rand(1, 1, side, side)
    best = float("inf")
    with torch.inference_mode():
        model(image[..., :32, :32])
        before = peak_bytes()
        for _ in range(rounds + 1):
            began = time.process_time()
            model(image)
            best = min(best, time.process_time() - began)
    return Cost(name, side, 1e9 * best / side**2, (peak_bytes() - before) / side**2)


def _print(rows: list[Cost], where: dict[str, str]) -> None:
    table = Table("network", "px", "ns per pixel", "relative to smallest", "bytes per pixel", "relative to smallest")
    for row in rows:
        first = next(r for r in rows if r.model == row.model)
        more = f"{row.bytes_per_px / first.bytes_per_px:.2f}" if first.bytes_per_px else "-"
        figures = (f"{row.ns_per_px:.0f}", f"{row.ns_per_px / first.ns_per_px:.2f}", f"{row.bytes_per_px:.0f}", more)
        table.add_row(row.model, str(row.side_px), *figures)
    print_table(table, where)


def _rounded(row: Cost) -> dict[str, Any]:
    return asdict(row) | dict(ns_per_px=round(row.ns_per_px), bytes_per_px=round(row.bytes_per_px))
