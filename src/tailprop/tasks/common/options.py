"""Options that the commands of every task share."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from tailprop.engine.options import Checkpoint
from tailprop.utils.validation import check_at_least, check_output_file, check_output_folder

__all__ = ["ComputeOptions", "EvalOptions", "Images", "PredictOptions", "override"]

T = TypeVar("T")
Images = Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES")]


def override(settings: T, choice: Any, **given: Any) -> T:
    """Settings with what was chosen in their place; what is none was not."""
    chosen = {f.name: v for f in fields(choice) if (v := getattr(choice, f.name)) is not None}
    changed = replace(settings, **{**chosen, **given})  # type: ignore[type-var] # T is a dataclass
    changed.check()  # type: ignore[attr-defined]
    return changed


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """Where and how to compute."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast type."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to run."""
    threads: int = 0
    """CPU threads; 0 = PyTorch's choice."""

    def check(self) -> None:
        check_at_least("threads", self.threads, 0)


@dataclass(frozen=True)
class EvalOptions(ComputeOptions):
    """Measure a checkpoint."""

    checkpoint: Checkpoint
    """A run folder, a file of weights, or for a classifier the name of a pretrained timm model."""
    out: Path | None = None
    """JSON file for the numbers."""

    def check(self) -> None:
        super().check()
        check_output_file("--out", self.out)
        if self.out is not None and self.out.suffix.lower() in (".html", ".csv", ".png", ".jpg", ".pdf"):
            raise ValueError(f"--out writes JSON; name a .json file instead of {self.out}")


@dataclass(frozen=True)
class PredictOptions(ComputeOptions):
    """Answer images with a folder."""

    checkpoint: Checkpoint
    """A run folder, or a file of exported weights."""
    images: Images
    """Files, folders (searched with all folders below), or globs such as 'photos/*.jpg' in quotes."""
    out: Path = Path("predictions")
    """Folder for the answers."""
    on_broken: Literal["skip", "stop"] = "skip"
    """An image that cannot be read: name it on standard error and skip it, or stop."""
    overwrite: bool = False
    """Write over files that are in the folder already; they may be somebody's work."""

    def check(self) -> None:
        super().check()
        check_output_folder("--out", self.out)
        if self.out.suffix.lower() in (".html", ".csv", ".json", ".txt", ".jpg", ".png", ".pdf") and not self.out.is_dir():
            raise ValueError(f"--out is a folder, and {self.out} is named like a file; name a folder")
