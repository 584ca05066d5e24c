"""Options shared by the commands of every task."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from tailprop.engine.options import Checkpoint
from tailprop.engine.settings import check_numbers
from tailprop.utils.validation import check_at_least, check_output_file, check_output_folder

__all__ = ["ComputeOptions", "EvalOptions", "Images", "PredictOptions", "override"]

T = TypeVar("T")
Images = Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES")]


def override(settings: T, choice: Any, **given: Any) -> T:
    """Replace settings by the options that were given; None = not given."""
    chosen = {f.name: v for f in fields(choice) if (v := getattr(choice, f.name)) is not None}
    changed = replace(settings, **{**chosen, **given})  # type: ignore[type-var] # T is a dataclass
    changed.check()  # type: ignore[attr-defined]
    return changed


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """Device, precision and threads."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast dtype."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device; auto = a GPU if there is one."""
    threads: int = 0
    """CPU threads; 0 = PyTorch's default."""

    def check(self) -> None:
        check_numbers(self)
        check_at_least("threads", self.threads, 0)


@dataclass(frozen=True)
class EvalOptions(ComputeOptions):
    """Evaluate a checkpoint."""

    checkpoint: Checkpoint
    """A run folder, a weights file, the name of a shipped model, or for a classifier that of a pretrained timm model."""
    out: Path | None = None
    """JSON file for the metrics."""

    def check(self) -> None:
        super().check()
        check_output_file("--out", self.out)
        if self.out is not None and self.out.suffix.lower() in (".html", ".csv", ".png", ".jpg", ".pdf"):
            raise ValueError(f"--out writes JSON; give a .json file instead of {self.out}")


@dataclass(frozen=True)
class PredictOptions(ComputeOptions):
    """Predict images and write a folder of results."""

    checkpoint: Checkpoint
    """A run folder, a file of exported weights, or the name of a shipped model."""
    images: Images
    """Files, folders (searched recursively), or globs such as 'photos/*.jpg' in quotes."""
    out: Path = Path("predictions")
    """Folder for the predictions."""
    on_broken: Literal["skip", "stop"] = "skip"
    """If an image cannot be read: skip it and print its name on standard error, or stop."""
    overwrite: bool = False
    """Overwrite files that are already in the folder."""

    def check(self) -> None:
        super().check()
        check_output_folder("--out", self.out)
        if self.out.suffix.lower() in (".html", ".csv", ".json", ".txt", ".jpg", ".png", ".pdf") and not self.out.is_dir():
            raise ValueError(f"--out must be a folder, but {self.out} has the suffix of a file; name a folder")
