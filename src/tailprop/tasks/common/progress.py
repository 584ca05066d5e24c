"""Progress of a command over images, and the images that it skips. Nothing here imports PyTorch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tailprop.data.broken import Broken
from tailprop.utils.terminal import Console

__all__ = ["SkippedImages", "print_line", "progress_bar"]


class SkippedImages:
    """Collects images that cannot be read: prints each name on standard error, or raises at the first.

    Args:
        total: Number of all images; a single image that cannot be read is always an error.
    """

    def __init__(self, console: Console, on_broken: Literal["skip", "stop"], total: int) -> None:
        self.console, self.on_broken, self.total = console, on_broken, total
        self.broken: list[Broken] = []

    def add(self, item: Broken) -> None:
        if self.total == 1:
            raise ValueError(str(item))
        if self.on_broken == "stop":
            raise ValueError(f"{item}; fix or remove it, or skip it (--on-broken skip)")
        self.broken.append(item)
        print_line(self.console, f"skipped {item}")
        if len(self.broken) == self.total:
            raise ValueError(f"none of {self.total} images can be read; the first: {self.broken[0]}")


def print_line(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True)  # one line, above the progress bar if there is one


@contextmanager
def progress_bar(
    title: str, total: float, console: Console | None = None, shown: bool = True
) -> Iterator[Callable[[float], None]]:
    """A progress bar on a terminal, nothing elsewhere; call the yielded function with the amount of work done."""
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        bar = progress.add_task(title, total=total)
        yield lambda done: progress.advance(bar, done)
