"""Options of the commands for classifiers.

Nothing here imports PyTorch before the options are checked: --help and wrong options need none.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tailprop.data.images import is_image
from tailprop.engine.options import Checkpoint
from tailprop.engine.settings import setting
from tailprop.tasks.classify.config import DataConfig
from tailprop.tasks.common.config import LEAST_PX
from tailprop.tasks.common.options import ComputeOptions, EvalOptions, Images, override
from tailprop.utils.validation import check_at_least, check_output_file, check_output_folder

__all__ = ["ClassifyEval", "ClassifyPredict", "DataChoice"]

_DRAWN = (".png", ".jpg", ".pdf", ".svg")


@dataclass(frozen=True)
class DataChoice:
    """The dataset to evaluate on; defaults are those of the checkpoint's run."""

    source: Literal["folder", "parquet", "timm", "digits"] | None = None
    """folder: one folder for each class; parquet: a Hugging Face snapshot; timm: a dataset by name; digits: embedded."""
    root: Path | None = None
    """Root folder of the dataset."""
    name: str | None = None
    """timm's dataset name for source timm."""
    size_px: int | None = None
    """Image size."""
    resize_px: int | None = None
    """Shorter side before the center crop; none = by the run's crop_pct."""
    on_broken: Literal["skip", "stop"] | None = None
    """What to do with an image that cannot be read: skip and count it, or stop."""
    held_out: float | None = None
    """Fraction to evaluate of a folder without splits; none = all of it, or for the run's own folder its held-out images."""
    unpack: bool | None = None
    """Unpack parquet shards into a cache once instead of reading them in place."""
    cache_dir: Path | None = setting(None, aliases=("cache",))
    """Folder for unpacked parquet shards; none = the cache of the datasets library."""
    download: bool | None = None
    """Let timm download the dataset."""
    workers: int | None = None
    """Loader processes."""

    def over(self, data: DataConfig, split: str = "validation") -> DataConfig:
        given: dict[str, Any] = {}
        if self.root is not None and self.source is None and data.source not in ("folder", "parquet"):
            given["source"] = "folder"
        is_own = data.root is not None and self.root is not None and self.root.resolve() == data.root.resolve()
        if self.root is not None and self.held_out is None and not is_own:
            given["held_out"] = 0.0 if split == "train" else 1.0
        return override(data.at_size(self.size_px), self, **given)


@dataclass(frozen=True)
class ClassifyEval(EvalOptions):
    """Evaluate a classifier."""

    model: str | None = None
    """timm name of the architecture, if the checkpoint does not contain it."""
    split: Literal["validation", "train"] = "validation"
    """The dataset."""
    data: DataChoice = field(default_factory=DataChoice)
    batch_size: int = setting(64, aliases=("batch",))
    """Images per batch."""
    confusion: Path | None = None
    """File for a plot of the confusion matrix, with up to 1300 classes."""
    images: Path | None = None
    """Folder for mistakes.jpg, the most confident wrong predictions."""

    def check(self) -> None:
        super().check()
        check_at_least("batch_size", self.batch_size, 1)
        check_output_file("--confusion", self.confusion)
        if self.confusion is not None and (suffix := self.confusion.suffix.lower()) not in _DRAWN:
            raise ValueError(f"--confusion supports {', '.join(_DRAWN)}, not {suffix or 'a file without a suffix'}")
        if self.images is not None:
            check_output_folder("--images", self.images)


_SUFFIXES = {".csv": "csv", ".json": "json", ".txt": "table", "": "table"}


@dataclass(frozen=True)
class ClassifyPredict(ComputeOptions):
    """Classify images."""

    checkpoint: Checkpoint
    """A run folder, a file of weights, or the name of a pretrained timm model."""
    images: Images
    """Files, folders (searched recursively), or quoted globs such as 'photos/*.jpg'."""
    top: int = 5
    """Number of classes to list for each image."""
    format: Literal["table", "csv", "json"] | None = None
    """Output format; none = by the suffix of --out, else a table."""
    out: Path | None = None
    """File for the predictions (.csv, .json or .txt); none = standard output."""
    sheet: Path | None = None
    """File for a contact sheet of the first 48 images with their classes (.jpg or .png)."""
    model: str | None = None
    """timm name of the architecture, if the checkpoint does not contain it."""
    size_px: int | None = None
    """Image size; none = that of the checkpoint."""
    batch_size: int = setting(32, aliases=("batch",))
    """Images per batch."""
    on_broken: Literal["skip", "stop"] = "skip"
    """What to do with an image that cannot be read: skip it with a line on standard error, or stop."""

    def check(self) -> None:
        super().check()
        check_at_least("top", self.top, 1)
        check_at_least("batch_size", self.batch_size, 1)
        if self.size_px is not None:
            check_at_least("size_px", self.size_px, LEAST_PX)
        check_output_file("--out", self.out)
        check_output_file("--sheet", self.sheet)
        if self.sheet is not None and self.sheet.suffix.lower() not in (".jpg", ".jpeg", ".png"):
            raise ValueError(f"--sheet must be a .jpg or .png file, got {self.sheet}")
        self._check_format()

    def _check_format(self) -> None:
        if self.out is None:
            return
        if is_image(self.out):  # with a forgotten file name, --out would overwrite the first image
            raise ValueError(f"--out {self.out} has an image suffix, but the output is text; use .csv, .json or .txt")
        if self.format is None and self.out.suffix.lower() not in _SUFFIXES and not self.out.exists():
            raise ValueError(f"--out writes .csv, .json or .txt, not {self.out.suffix}; use --format for another suffix")

    @property
    def written_as(self) -> str:
        return self.format or _SUFFIXES.get("" if self.out is None else self.out.suffix.lower(), "table")
