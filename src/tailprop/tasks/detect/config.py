"""Settings of detection.

Nothing here imports PyTorch before the settings are checked: --help and wrong options need none.
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

import tyro

from tailprop.data.formats.coco import Masks
from tailprop.engine.config import TaskConfig
from tailprop.engine.settings import setting
from tailprop.tasks.common.config import SceneDataConfig
from tailprop.utils.validation import check_at_least, check_between

__all__ = ["LEVELS", "DetectAugmentConfig", "DetectConfig", "DetectDataConfig", "DetectorConfig"]

LEVELS: Final = ("0", "1", "2", "3")  # 1/4, 1/8, 1/16, 1/32; torchvision adds a pooled 1/64 for proposals


@dataclass(frozen=True)
class DetectorConfig:
    """The detector after the backbone; the defaults are those of the literature."""

    masks: Masks = setting("auto", late=True)
    """Predict a mask for each object (Mask R-CNN) or boxes alone (Faster R-CNN); auto = as the training annotations have."""
    channels: int = 256
    """Channels of the pyramid and of the heads' convolutions."""
    box_width: int = 1024
    """Width of the two linear layers of the box head."""
    mask_layers: int = 4
    """Convolutions of the mask head."""
    anchor_px: tuple[int, ...] = (32, 64, 128, 256, 512)
    """Side of the anchors at each pyramid level, finest first."""
    candidates: int = 2000
    """Top-scoring anchors of each level that enter NMS in training; half as many in evaluation."""
    proposals: int = 1000
    """Proposals per image after NMS."""
    rpn_samples: int = 256
    """Anchors per image sampled for the proposal loss."""
    box_samples: int = 512
    """Proposals per image sampled for the box, class and mask losses."""
    detections: int = 100
    """Maximum number of objects per image."""
    score: float = 0.05
    """Minimum score of an object."""
    nms: float = 0.5
    """IoU threshold of NMS: the lower-scoring of two overlapping boxes of a class is dropped."""

    def check(self) -> None:
        for name in ("channels", "box_width", "mask_layers", "candidates", "proposals", "rpn_samples", "detections"):
            check_at_least(f"detector.{name}", getattr(self, name), 1)
        check_at_least("detector.box_samples", self.box_samples, 4)  # a quarter of them are positives
        if len(self.anchor_px) != len(LEVELS) + 1 or min(self.anchor_px) < 1:
            raise ValueError(f"detector.anchor_px needs {len(LEVELS) + 1} sides, one for each level, got {self.anchor_px}")
        check_between("detector.score", self.score, 0, 1)
        check_between("detector.nms", self.nms, 0, 1)


@dataclass(frozen=True)
class DetectDataConfig(SceneDataConfig):
    """Images with boxes and perhaps masks, in COCO's format."""

    source: Literal["coco", "scenes"] = "coco"
    """coco: a dataset in COCO's format; scenes: synthetic shapes, generated into the root if they are missing."""
    train_images: str = "train2017"
    """Folder of the training images."""
    train_json: str = "annotations/instances_train2017.json"
    """Annotations of the training images."""
    val_images: str = "val2017"
    """Folder of the validation images."""
    val_json: str = "annotations/instances_val2017.json"
    """Annotations of the validation images."""
    validate_on_train: bool = False
    """Evaluate on the training images, to check that a model can overfit them."""
    short_px: int = 800
    """Shorter side of the images in evaluation."""
    long_px: int = 1333
    """Maximum longer side, in training and evaluation."""
    keep_empty: bool = False
    """Also train on images without objects; by default they are skipped and counted."""


@dataclass(frozen=True)
class DetectAugmentConfig:
    """Training augmentation; the default sizes are those of the 1x schedule."""

    short_px: tuple[int, ...] = (800,)
    """Shorter sides, one of which is chosen at random for each image."""
    crop_chance: float = 0.0
    """Probability that an image is first resized to one of crop_short_px and cropped, as in DETR."""
    crop_short_px: tuple[int, ...] = (400, 500, 600)
    """Shorter sides before the crop, one of which is chosen at random."""
    crop_px: tuple[int, int] = (384, 600)
    """Minimum and maximum side of the crop."""
    flip: float = 0.5
    """Probability of a horizontal flip."""

    def check(self) -> None:
        for side in (*self.short_px, *self.crop_short_px, *self.crop_px):
            check_at_least("sides in augment", side, 32)
        if not self.short_px or not self.crop_short_px or self.crop_px[0] > self.crop_px[1]:
            raise ValueError(
                "augment.short_px and augment.crop_short_px need at least one side, augment.crop_px a minimum and a maximum"
            )
        check_between("augment.crop_chance", self.crop_chance, 0, 1)
        check_between("augment.flip", self.flip, 0, 1)


@dataclass(frozen=True)
class DetectConfig(TaskConfig):
    """Train Mask R-CNN, or Faster R-CNN on data without masks."""

    task: Literal["detect"] = "detect"
    """Task to train."""
    paper_ap: Annotated[dict[str, list[float]], tyro.conf.Suppress] = setting(factory=dict)
    """The paper's box and mask AP for models of this recipe, printed next to ours."""
    detector: DetectorConfig = setting(factory=DetectorConfig)
    data: DetectDataConfig = setting(factory=DetectDataConfig)
    augment: DetectAugmentConfig = setting(factory=DetectAugmentConfig)

    def check(self) -> None:
        super().check()
        for section in (self.detector, self.data, self.augment):
            section.check()
        from tailprop.tasks.common.pyramid import check_pyramid_model  # imports PyTorch, so it comes last

        check_pyramid_model(self.model, "a detector")
