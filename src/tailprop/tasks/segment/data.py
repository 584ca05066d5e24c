"""Pictures with label maps for training and evaluation: settings, augmentation, batches.

Shapes: H height, W width. Pictures are bytes, (3, H, W); labels (H, W), IGNORE where nobody says.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.formats.label_maps import IGNORE, Labelled, LabelSet, find_classes, read_labelled, read_pair
from tailprop.data.loader import Examples
from tailprop.data.samplers import Key
from tailprop.data.shapes.render import SceneConfig
from tailprop.runtime.distributed import World, any_true
from tailprop.runtime.rng import seeded
from tailprop.utils.validation import check_at_least, check_between

__all__ = ["Augment", "SegmentAugmentConfig", "SegmentBatch", "SegmentDataConfig", "Segments", "collate", "open_labelled"]

TRIES: Final = 10  # cuts tried for one that is not nearly all of one class
GROUND: Final = tuple(round(255 * mean) for mean in IMAGENET_DEFAULT_MEAN)  # padding that is zero once normalised


@dataclass(frozen=True)
class SegmentDataConfig:
    """Pictures and label PNGs; the folders given are ADE20K's."""

    source: Literal["folder", "scenes"] = "folder"
    """folder: yours, or ADEChallengeData2016; scenes: shapes, generated into the folder if it is not there."""
    root: Path | None = None
    """Folder that everything below is in."""
    train_images: str = "images/training"
    """Folder of the training pictures."""
    train_labels: str = "annotations/training"
    """Their label maps, PNGs of the same names."""
    val_images: str = "images/validation"
    """Folder of the validation pictures."""
    val_labels: str = "annotations/validation"
    """Their label maps."""
    classes: str | None = None
    """File with a class name in every line; ade20k = its 150; none = objectInfo150.txt or classes.txt in the root."""
    first_label: int | None = None
    """Number of the first class in the label maps; lower numbers, and 255 if it is no class, are ignored. None = as the list
    of classes has it: 1 for ADE20K, 0 for a plain list."""
    scenes: SceneConfig = field(default_factory=SceneConfig)
    """How generated scenes look."""
    scene_counts: tuple[int, int] = (2000, 200)
    """Generated scenes for training and for validation."""
    limit: int | None = None
    """Use only so many training pictures, the first ones; none = all."""
    short_px: int = 512
    """Shorter side the pictures are resized to."""
    long_px: int = 2048
    """Longer side at most."""
    on_broken: Literal["skip", "stop"] = "stop"
    """A picture or a label map that is missing or damaged: skip and count it, or stop."""
    workers: int = 2
    """Loader processes for each training process."""

    def check(self) -> None:
        check_at_least("data.short_px", self.short_px, 32)
        check_at_least("data.long_px", self.long_px, self.short_px)
        check_at_least("data.workers", self.workers, 0)
        if self.first_label is not None:
            check_between("data.first_label", self.first_label, 0, 255)
        for count in self.scene_counts:
            check_at_least("data.scene_counts", count, 1)
        if self.limit is not None:
            check_at_least("data.limit", self.limit, 1)
        self.scenes.check()
        if self.root is None:
            raise ValueError("--data.root is missing, the folder with the pictures and label maps")


@dataclass(frozen=True)
class SegmentAugmentConfig:
    """Augmentation while training."""

    resize: tuple[float, float] = (0.5, 2.0)
    """Least and greatest factor on data.short_px and data.long_px."""
    crop_px: int = 512
    """Side of the cut; what the picture does not fill is ignored."""
    most_of_one: float = 0.75
    """A cut with more than this share of one class is drawn again, ten times at most."""
    flip: float = 0.5
    """Chance of a mirror image."""
    distort: float = 0.5
    """Chance of each photometric distortion: brightness, contrast, saturation, hue."""

    def check(self) -> None:
        if not 0 < self.resize[0] <= self.resize[1]:
            raise ValueError(f"augment.resize are the least and the greatest factor, got {self.resize}")
        check_at_least("augment.crop_px", self.crop_px, 32)
        for name in ("most_of_one", "flip", "distort"):
            check_between(f"augment.{name}", getattr(self, name), 0, 1)


class Augment:
    """Resize, cut, mirror and distort a picture with its labels. Draws from Python's generator."""

    def __init__(self, config: SegmentAugmentConfig, short_px: int, long_px: int) -> None:
        self.config, self.short_px, self.long_px = config, short_px, long_px

    def __call__(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        factor = random.uniform(*self.config.resize)
        image, labels = resize(image, labels, factor * self.short_px, factor * self.long_px)
        image, labels = self._cut(image, labels)
        if random.random() < self.config.flip:
            image, labels = image.flip(-1), labels.flip(-1)
        return pad(distort(image, self.config.distort), labels, self.config.crop_px)

    def _cut(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        h, w = labels.shape
        side = self.config.crop_px
        for _ in range(TRIES):
            top, left = random.randint(0, max(0, h - side)), random.randint(0, max(0, w - side))
            part = labels[top : top + side, left : left + side]
            if self.config.most_of_one == 1 or is_mixed(part, self.config.most_of_one):
                break
        return image[:, top : top + side, left : left + side], part


def is_mixed(labels: Tensor, most: float) -> bool:
    """Whether there are several classes, and none of them with more than this share of the labelled pixels."""
    counts = torch.bincount(labels[labels != IGNORE].long())
    return int((counts > 0).sum()) > 1 and bool(counts.max() < most * counts.sum())


def fit_within(h: int, w: int, short_px: float, long_px: float) -> tuple[int, int]:
    """Height and width with the shorter side at short_px, or the longer at long_px if that is smaller."""
    scale = min(short_px / min(h, w), long_px / max(h, w))
    return max(1, int(h * scale + 0.5)), max(1, int(w * scale + 0.5))


def resize(image: Tensor, labels: Tensor, short_px: float, long_px: float) -> tuple[Tensor, Tensor]:
    size = fit_within(labels.shape[0], labels.shape[1], short_px, long_px)
    if size == labels.shape:
        return image, labels
    image = resize_picture(image[None].float(), size)[0].round().to(torch.uint8)
    labels = F.interpolate(labels[None, None].float(), size, mode="nearest-exact")[0, 0].to(labels.dtype)
    return image, labels


def resize_picture(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear and without smoothing, in training as in evaluation."""
    return F.interpolate(images, size, mode="bilinear", align_corners=False)


def pad(image: Tensor, labels: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Fill up on the right and below."""
    h, w = labels.shape
    if (h, w) == (side, side):
        return image, labels
    padded = torch.tensor(GROUND, dtype=torch.uint8)[:, None, None].repeat(1, side, side)
    padded[:, :h, :w] = image
    return padded, F.pad(labels, (0, side - w, 0, side - h), value=IGNORE)


def distort(image: Tensor, chance: float) -> Tensor:
    """Brightness, contrast, saturation and hue, each by chance; contrast before or after the colours, as SSD has it."""
    gain = random.uniform(0.5, 1.5) if random.random() < chance else 1.0
    shift = random.uniform(-32, 32) if random.random() < chance else 0.0
    saturation = random.uniform(0.5, 1.5) if random.random() < chance else 1.0
    hue = random.uniform(-0.1, 0.1) if random.random() < chance else 0.0  # of the circle
    gain_first = random.random() < 0.5
    image = _to_bytes((image + shift).clamp(0, 255) * (gain if gain_first else 1.0))
    image = _turn(image, saturation, hue)
    return image if gain_first else _to_bytes(image * gain)


def _to_bytes(image: Tensor) -> Tensor:
    return image.clamp(0, 255).round().to(torch.uint8)


def _turn(image: Tensor, saturation: float, hue: float) -> Tensor:
    """Change the saturation by a factor and the hue by a part of its circle."""
    if saturation == 1 and hue == 0:
        return image
    picture = Image.fromarray(image.permute(1, 2, 0).numpy()).convert("HSV")
    h, s, v = (np.asarray(band) for band in picture.split())
    h = ((h.astype(np.int16) + round(256 * hue)) % 256).astype(np.uint8)
    s = np.clip(s * saturation + 0.5, 0, 255).astype(np.uint8)
    turned = Image.merge("HSV", [Image.fromarray(band) for band in (h, s, v)]).convert("RGB")
    return torch.from_numpy(np.array(turned)).permute(2, 0, 1)


@dataclass
class SegmentBatch:
    """Pictures with labels, of one size in training and of any in evaluation, and what could not be read."""

    images: list[Tensor]  # (3, H, W), bytes
    labels: list[Tensor]  # (H, W)
    indices: list[int]  # places in the set
    broken: list[Broken] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.images)


Example = tuple[Tensor, Tensor, int]  # picture, labels, index


class Segments(Examples):
    """The pictures of a set. A broken one comes as `Broken`, in training with the next good one in its place.

    Args:
        order: For each class of the set its number in the model, where they differ.
    """

    def __init__(self, part: LabelSet, augment: Augment | None = None, order: Sequence[int] | None = None) -> None:
        self.part, self.augment = part, augment
        self.order = None if order is None else torch.tensor([*order, IGNORE], dtype=torch.int16)  # IGNORE = -1 is the last

    def __len__(self) -> int:
        return len(self.part.pairs)

    def __getitem__(self, key: Key) -> list[Example | Broken]:
        found: list[Example | Broken] = []
        for offset in range(min(len(self), 17)):
            found.append(self._read((key.index + offset) % len(self), key.seed))
            if not isinstance(found[-1], Broken) or self.augment is None:
                break
        return found

    def _read(self, index: int, seed: int) -> Example | Broken:
        pair: Labelled = self.part.pairs[index]
        read = read_pair(pair, len(self.part.classes), self.part.first_label)
        if isinstance(read, Broken):
            return read
        image, labels = torch.from_numpy(np.array(read[0])).permute(2, 0, 1), torch.from_numpy(read[1])
        if self.order is not None:
            labels = self.order[labels.long()]
        if self.augment is not None:
            with seeded(seed):
                image, labels = self.augment(image, labels)
        return image.contiguous(), labels, index


def collate(examples: Sequence[list[Example | Broken]]) -> SegmentBatch:
    found = [item for example in examples for item in example]
    good = [item for item in found if not isinstance(item, Broken)]
    broken = [item for item in found if isinstance(item, Broken)]
    return SegmentBatch([g[0] for g in good], [g[1] for g in good], [g[2] for g in good], broken)


def normalise(images: Tensor) -> Tensor:
    """Bytes to what the backbone was trained on: ImageNet's mean and deviation. (B, 3, H, W)"""
    numbers = torch.tensor([IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD], device=images.device)
    mean, deviation = numbers[..., None, None]  # (3, 1, 1)
    return (images.float() / 255 - mean) / deviation


def open_labelled(data: SegmentDataConfig, split: Literal["train", "validation"], world: World | None = None) -> LabelSet:
    """A split, generated first if it is of scenes that are not there."""
    assert data.root is not None  # checked before
    if data.source == "scenes":
        _generate(data, world)
    if not data.root.is_dir():
        raise ValueError(f"no folder {data.root}; give the folder with the pictures and label maps with --data.root")
    pictures, labels = (data.train_images, data.train_labels) if split == "train" else (data.val_images, data.val_labels)
    classes = find_classes(data.root, data.classes)
    first_label = classes.first_label if data.first_label is None else data.first_label
    return read_labelled(data.root / pictures, data.root / labels, classes.names, first_label)


def _generate(data: SegmentDataConfig, world: World | None) -> None:
    from tailprop.data.shapes.write import ensure_ade20k

    assert data.root is not None
    if world is None or world.is_first:
        ensure_ade20k(data.root, data.scenes, *data.scene_counts)
    if world is not None:
        any_true(False, world.device)  # the others wait until the scenes are there
