"""Settings of segmentation.

Nothing here imports PyTorch before the settings are checked: --help and wrong options need none.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from tailprop.data.formats.label_maps import ADE20K
from tailprop.engine.config import TaskConfig
from tailprop.engine.settings import setting
from tailprop.tasks.common.config import LEAST_PX, SceneDataConfig
from tailprop.utils.validation import check_at_least, check_between

__all__ = ["InferenceConfig", "SegmentAugmentConfig", "SegmentConfig", "SegmentDataConfig", "SegmenterConfig"]


@dataclass(frozen=True)
class SegmenterConfig:
    """UPerNet after the backbone; the defaults are those of the literature."""

    channels: int = 512
    """Channels of the decoder."""
    dropout: float = 0.1
    """Share of channels dropped before each classifier."""
    aux_channels: int = 256
    """Channels of the auxiliary head on the third stage."""
    aux_weight: float = 0.4
    """Weight of the auxiliary loss; 0 = no auxiliary head."""

    def check(self) -> None:
        check_at_least("segmenter.channels", self.channels, 1)
        check_at_least("segmenter.aux_channels", self.aux_channels, 1)
        check_at_least("segmenter.aux_weight", self.aux_weight, 0)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"segmenter.dropout must be in [0, 1), got {self.dropout}")


def _is_file(classes: str | None) -> bool:
    """Whether the class list is a local file. Exported weights contain the class names and do not need it."""
    return classes != ADE20K


@dataclass(frozen=True)
class SegmentDataConfig(SceneDataConfig):
    """Images and label maps (PNG); the default folders are those of ADE20K."""

    source: Literal["folder", "scenes"] = "folder"
    """folder: images and label maps, such as ADEChallengeData2016; scenes: synthetic shapes, generated into the root if they
    are missing."""
    train_images: str = "images/training"
    """Folder of the training images."""
    train_labels: str = "annotations/training"
    """Label maps of the training images, PNGs of the same names."""
    val_images: str = "images/validation"
    """Folder of the validation images."""
    val_labels: str = "annotations/validation"
    """Label maps of the validation images."""
    classes: str | None = setting(None, local=_is_file)
    """File with one class name per line; ade20k = its 150 classes; none = objectInfo150.txt or classes.txt in the root."""
    first_label: int | None = None
    """Value of the first class in the label maps; lower values are ignored, and so is 255 if it is not a class. None = as in
    the class list: 1 for ADE20K, 0 for a plain list."""
    colors: str | None = setting(None, local=True, late=True)
    """File with a class and its colour in each line, for label maps in colours or with a palette: "64 128 64 animal",
    "animal,64,128,64" or "animal:64,128,64::"; none = as the class list, which may have colours itself."""
    short_px: int = 512
    """Shorter side the images are resized to."""
    long_px: int = 2048
    """Maximum longer side."""

    def check(self) -> None:
        super().check()
        if self.first_label is not None:
            check_between("data.first_label", self.first_label, 0, 255)
            if self.colors is not None:
                raise ValueError(
                    "data.first_label is for label maps of numbers, data.colors for colours; leave out one of them"
                )


@dataclass(frozen=True)
class SegmentAugmentConfig:
    """Training augmentation."""

    resize: tuple[float, float] = (0.5, 2.0)
    """Minimum and maximum of the random factor on data.short_px and data.long_px."""
    crop_px: int = 512
    """Side of the crop; smaller images are padded, and the loss ignores the padding."""
    cat_max_ratio: float = setting(0.75, aliases=("most_of_one",))
    """A crop in which one class has more than this share is drawn again, up to ten times."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    distort: float = 0.5
    """Probability of each photometric distortion: brightness, contrast, saturation, hue."""

    def check(self) -> None:
        if not 0 < self.resize[0] <= self.resize[1]:
            raise ValueError(f"augment.resize must be a minimum above 0 and a maximum, got {self.resize}")
        check_at_least("augment.crop_px", self.crop_px, 32)
        for name in ("cat_max_ratio", "flip", "distort"):
            check_between(f"augment.{name}", getattr(self, name), 0, 1)


@dataclass(frozen=True)
class InferenceConfig:
    """How a trained segmenter runs on an image."""

    mode: Literal["slide", "whole"] = "slide"
    """slide: windows, averaged where they overlap; whole: the whole image at once."""
    window_px: int = 512
    """Side of the windows."""
    stride_px: int = 341
    """Distance between windows."""
    scales: tuple[float, ...] = (1.0,)
    """Factors on the image size; probabilities are averaged over them."""
    flip: bool = False
    """Also average over the horizontally flipped image."""

    def check(self) -> None:
        check_at_least("inference.window_px", self.window_px, LEAST_PX)
        check_at_least("inference.stride_px", self.stride_px, 1)
        if self.stride_px > self.window_px:
            raise ValueError(
                f"inference.stride_px {self.stride_px} leaves gaps between windows of {self.window_px} px; lower it"
            )
        if not self.scales or not all(0 < scale < math.inf for scale in self.scales):
            raise ValueError(f"inference.scales must be one or more positive numbers, got {self.scales}")


@dataclass(frozen=True)
class SegmentConfig(TaskConfig):
    """Train UPerNet."""

    task: Literal["segment"] = "segment"
    """Task to train."""
    paper_miou: Annotated[dict[str, float], tyro.conf.Suppress] = setting(factory=dict)
    """The paper's mean IoU for models of this recipe, printed next to ours."""
    segmenter: SegmenterConfig = setting(factory=SegmenterConfig)
    data: SegmentDataConfig = setting(factory=SegmentDataConfig)
    augment: SegmentAugmentConfig = setting(factory=SegmentAugmentConfig)
    inference: InferenceConfig = setting(factory=InferenceConfig)

    def check(self) -> None:
        super().check()
        for section in (self.segmenter, self.data, self.augment, self.inference):
            section.check()
        from tailprop.tasks.common.pyramid import check_pyramid_model  # imports PyTorch, so it comes last

        check_pyramid_model(self.model, "a segmenter")
