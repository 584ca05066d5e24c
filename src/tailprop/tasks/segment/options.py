"""Options of the commands for segmenters.

Nothing here imports PyTorch before the options are checked: --help and wrong options need none.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tailprop.data.formats.label_maps import has_classes
from tailprop.tasks.common.options import EvalOptions, PredictOptions, override
from tailprop.tasks.segment.config import InferenceConfig, SegmentDataConfig, SegmenterConfig
from tailprop.utils.validation import check_at_least

__all__ = ["SWIN", "BenchSegment", "InferenceChoice", "SegmentDataChoice", "SegmentEval", "SegmentPredict"]


@dataclass(frozen=True)
class SegmentDataChoice:
    """A dataset to evaluate on instead of the run's; settings that are not given stay as in the run."""

    root: Path | None = None
    """Root folder of the dataset."""
    val_images: str | None = None
    """Folder of the images."""
    val_labels: str | None = None
    """Label maps of these images, PNGs of the same names."""
    classes: str | None = None
    """File with one class name per line; ade20k = its 150 classes."""
    colors: str | None = None
    """File with a class and its colour in each line, for label maps in colours; none = as in the run, or as in the new class
    list."""
    first_label: int | None = None
    """Value of the first class in the label maps; lower values are ignored. None = as in the run, or as in the new class
    list."""
    short_px: int | None = None
    """Shorter side the images are resized to."""
    long_px: int | None = None
    """Maximum longer side."""
    on_broken: Literal["skip", "stop"] | None = None
    """For a missing or corrupt image or label map: skip and count it, or stop."""
    workers: int | None = None
    """Loader processes."""

    def over(self, data: SegmentDataConfig) -> SegmentDataConfig:
        given: dict[str, Any] = {}
        other_list = self.classes is not None
        if self.root is not None:
            given = dict(source="folder", limit=None)
            if self.classes is None and has_classes(self.root):  # the dataset's class list takes precedence over the run's
                given["classes"], other_list = None, True
        if other_list and self.first_label is None:
            given["first_label"] = None
        if other_list and self.colors is None:
            given["colors"] = None
        if self.colors is not None:
            given |= dict(classes=self.classes, first_label=None)
        return override(data, self, **given)


@dataclass(frozen=True)
class InferenceChoice:
    """Inference settings that override the run's; settings that are not given stay as in the run."""

    mode: Literal["slide", "whole"] | None = None
    """slide: windows, averaged where they overlap; whole: the whole image at once."""
    window_px: int | None = None
    """Side of the windows."""
    stride_px: int | None = None
    """Distance between windows."""
    scales: tuple[float, ...] | None = None
    """Factors on the image size; probabilities are averaged over them."""
    flip: bool | None = None
    """Also average over the horizontally flipped image."""

    def over(self, inference: InferenceConfig) -> InferenceConfig:
        return override(inference, self)


@dataclass(frozen=True)
class SegmentEval(EvalOptions):
    """Evaluate a segmenter."""

    split: Literal["validation", "train"] = "validation"
    """Split to evaluate."""
    data: SegmentDataChoice = field(default_factory=SegmentDataChoice)
    inference: InferenceChoice = field(default_factory=InferenceChoice)

    def check(self) -> None:
        super().check()
        if self.split == "train" and (self.data.val_images or self.data.val_labels):
            raise ValueError("--data.val-images and --data.val-labels belong to the validation split; leave out --split train")


@dataclass(frozen=True)
class SegmentPredict(PredictOptions):
    """Predict a class for every pixel of images."""

    out: Path = Path("segmented")
    """Folder for NAME.png (label map, values or colours as in the training data), NAME_overlay.jpg and classes.txt."""
    inference: InferenceChoice = field(default_factory=InferenceChoice)


SWIN: Final = "swin_tiny_patch4_window7_224"


@dataclass(frozen=True)
class BenchSegment:
    """Cost of UPerNet for one image, measured in interleaved rounds."""

    models: tuple[str, ...] = ("tailprop_tiny", "tailprop_small", "tailprop_base", "convnext_tiny", SWIN, "vheat_tiny")
    """timm names of backbones; the others are compared with the first."""
    height: int = 512
    """Height of the image."""
    width: int = 512
    """Width of the image."""
    rounds: int = 5
    """Timed rounds, after one warm-up round; 0 = only count multiply-adds, without running the models."""
    classes: int = 150
    """Number of classes."""
    threads: int = 2
    """CPU threads."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device to run on."""
    segmenter: SegmenterConfig = field(default_factory=SegmenterConfig)
    out: Path | None = None
    """CSV to write."""

    def check(self) -> None:
        from tailprop.tasks.common.bench import check_bench

        for name, least in (("height", 32), ("width", 32), ("rounds", 0), ("classes", 1), ("threads", 1)):
            check_at_least(name, getattr(self, name), least)
        self.segmenter.check()
        check_bench(self.models, self.device)
