"""What a person sees while it runs."""

import contextlib
import resource
import sys
import time
from types import TracebackType
from typing import Self

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tailprop.runtime.distributed import World
from tailprop.utils.text import counted

__all__ = ["Bar"]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Nobody listens any more: a run goes on without words, where rich would end it."""
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


class Bar:
    """A progress bar with loss, rate and memory on the first process; on a terminal it moves, in a log it is silent."""

    def __init__(self, total: int, done: int, images_per_step: int, world: World) -> None:
        self.world, self.images = world, images_per_step
        console = _Console()
        if not console.is_terminal:
            console = _Console(width=120)  # in a log nothing is cut off
        columns = (
            "{task.description}",
            BarColumn(20 if console.width >= 100 else 5),  # 80 columns hold everything else
            "{task.percentage:>3.0f} %",
            TimeElapsedColumn(),
            "left",
            TimeRemainingColumn(),
        )
        note = TextColumn("{task.fields[note]}")
        self.progress = Progress(*columns, note, console=console, disable=not world.is_first)
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

    def say(self, row: dict[str, float], broken: int) -> None:
        """A line for the epoch."""
        if not self.world.is_first:
            return
        metrics = ", ".join(f"{name} {row[name]:.2f}" for name in _spoken(row))
        lost = f", {counted(broken, 'broken picture')} left out" if broken else ""
        self.progress.console.print(
            f"epoch {row['epoch']:>3.0f}  loss {row['loss']:.4f}  {metrics}  "
            f"{row['img_per_s']:.0f} img/s  {row['minutes']:.1f} min{lost}",
            soft_wrap=True,
        )
        self.last = time.perf_counter()


def _spoken(row: dict[str, float]) -> list[str]:
    """The metrics for a person: of many, those that are not broken down further; metrics.jsonl has them all."""
    names = [name for name in row if name not in _SAID]
    return names if len(names) <= 8 else [name for name in names if name.endswith(("ap", "ap50", "ap75"))]


_SAID = ("epoch", "loss", "lr", "minutes", "cpu_minutes", "img_per_s")


def _memory_gb(device: torch.device) -> float:
    """The most memory used so far: the GPU's, or this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
