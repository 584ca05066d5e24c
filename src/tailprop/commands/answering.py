"""What every `tailprop predict` that fills a folder with answers is told: for which pictures, with what, and where to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tailprop.checks import check_output_folder
from tailprop.options import Checkpoint

__all__ = ["Answering"]


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
