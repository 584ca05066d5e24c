"""The progress bar of a run."""

import contextlib
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tailprop.runtime.distributed import World
from tailprop.runtime.memory import peak_bytes
from tailprop.utils.terminal import Console
from tailprop.utils.text import counted

__all__ = ["Bar"]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Continue without output when the pipe is closed; rich would exit."""
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


class Bar:
    """A progress bar with loss, rate and memory, on rank 0; in a log it prints only the epochs."""

    def __init__(self, total: int, done: int, images_per_step: int, world: World) -> None:
        self.world, self.images = world, images_per_step
        console = _Console()
        if not console.is_terminal:
            console = _Console(width=120)  # no lines are truncated in a log
        columns = (
            "{task.description}",
            BarColumn(20 if console.width >= 100 else 5),  # the rest needs 80 columns
            "{task.percentage:>3.0f} %",
            TimeElapsedColumn(),
            "left",
            TimeRemainingColumn(),
        )
        note = TextColumn("{task.fields[note]}")
        self.progress = Progress(*columns, note, console=console, disable=not world.is_main)
        self.task = self.progress.add_task("training", total=total, completed=done, note="")
        self.done = done
        self.rate = 0.0  # images per second, smoothed
        self.memory = 0.0  # GB
        self.last = time.perf_counter()

    def __enter__(self) -> Self:
        self.progress.start()
        self.last = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def update(self, done: int, where: str, loss: float, lr: float) -> None:
        now = time.perf_counter()
        rate = self.images * (done - self.done) / max(now - self.last, 1e-9)
        self.done = done
        self.rate = rate if self.rate == 0 else 0.9 * self.rate + 0.1 * rate
        self.last, self.memory = now, _memory_gb(self.world.device)
        note = f"loss {loss:.3f} lr {lr:.2g} {self.rate:.0f} img/s {self.memory:.1f} GB"
        self.progress.update(self.task, completed=done, description=where, note=note)

    def print_epoch(self, row: dict[str, float], metrics: Iterable[str], broken: int) -> None:
        """Print a line for the epoch, with the metrics that were evaluated."""
        if not self.world.is_main:
            return
        measured = ", ".join(f"{name} {row[name]:.2f}" for name in metrics if name in row)
        skipped = f", {counted(broken, 'broken image')} skipped" if broken else ""
        self.progress.console.print(
            f"epoch {row['epoch']:>3.4g}  loss {row['loss']:.4f}  {measured}  "
            f"{row['img_per_s']:.0f} img/s  {row['minutes']:.1f} min{skipped}",
            soft_wrap=True,
        )
        self.last = time.perf_counter()


def _memory_gb(device: torch.device) -> float:
    """Peak memory so far, of the GPU or of this process."""
    return (torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_bytes()) / 1e9
