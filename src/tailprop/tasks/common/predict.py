"""What the commands of `tailprop predict` share: the options of those that fill a folder, and how a broken picture is told."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.text import Text

from tailprop.data.broken import Broken
from tailprop.engine.options import Checkpoint
from tailprop.utils.text import printable
from tailprop.utils.validation import check_output_folder

__all__ = ["Answering", "Skipped", "say"]


@dataclass(frozen=True)
class Answering:
    """Answer a folder of pictures with a folder."""

    checkpoint: Checkpoint
    """A run folder, or a file of exported weights."""
    pictures: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PICTURES")]
    """Files, folders (searched with all folders below), or globs such as 'photos/*.jpg' in quotes."""
    out: Path = Path("answers")
    """Folder for the answers."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast type."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to run."""
    threads: int = 0
    """CPU threads; 0 = PyTorch's choice."""
    on_broken: Literal["skip", "stop"] = "skip"
    """A picture that cannot be read: name it on standard error and go on, or stop."""
    overwrite: bool = False
    """Write over files that are in the folder already; they may be somebody's work."""

    def check(self) -> None:
        check_output_folder("--out", self.out)


class Skipped:
    """Pictures that cannot be read: each is named on standard error, or the first stops the work.

    Args:
        total: Of all pictures; where there is but one, its damage is the answer.
    """

    def __init__(self, console: Console, on_broken: Literal["skip", "stop"], total: int) -> None:
        self.console, self.on_broken, self.total = console, on_broken, total
        self.broken: list[Broken] = []

    def add(self, item: Broken) -> None:
        if self.total == 1:
            raise ValueError(str(item))
        if self.on_broken == "stop":
            raise ValueError(f"{item}; mend or remove it, or go on without it (--on-broken skip)")
        self.broken.append(item)
        say(self.console, f"skipped {item}")
        if len(self.broken) == self.total:
            raise ValueError(f"none of {self.total} pictures can be read; the first: {self.broken[0]}")


def say(console: Console, text: str) -> None:
    console.print(Text(printable(text)), soft_wrap=True)  # one line, above the bar where there is one
