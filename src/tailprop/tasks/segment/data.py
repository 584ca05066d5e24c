"""Images with label maps for training and evaluation: settings, augmentation, batches.

Shapes: H height, W width. Images are uint8, (3, H, W); labels are (H, W), IGNORE where a pixel has no label.
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
from tailprop.data.formats.label_maps import IGNORE, ClassList, Labelled, LabelSet, find_classes, read_labelled, read_pair
from tailprop.data.loader import KeyedDataset, split_broken
from tailprop.data.resize import fit_within
from tailprop.data.samplers import SampleKey
from tailprop.data.shapes.write import ensure_ade20k
from tailprop.runtime.distributed import World
from tailprop.runtime.rng import seeded
from tailprop.tasks.common.predictor import to_tensor
from tailprop.tasks.common.scenes import ensure_scenes
from tailprop.tasks.segment.config import SegmentAugmentConfig, SegmentDataConfig
from tailprop.utils.text import listed

__all__ = ["Augment", "SegmentBatch", "SegmentationDataset", "collate", "open_labelled"]

TRIES: Final = 10  # random crops tried until one satisfies cat_max_ratio
GROUND: Final = tuple(round(255 * mean) for mean in IMAGENET_DEFAULT_MEAN)  # padding value, zero after normalisation


class Augment:
    """Resize, crop, flip and distort an image with its labels. Uses Python's global random generator."""

    def __init__(self, config: SegmentAugmentConfig, short_px: int, long_px: int) -> None:
        self.config, self.short_px, self.long_px = config, short_px, long_px

    def __call__(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        factor = random.uniform(*self.config.resize)
        image, labels = resize(image, labels, factor * self.short_px, factor * self.long_px)
        image, labels = self._random_crop(image, labels)
        if random.random() < self.config.flip:
            image, labels = image.flip(-1), labels.flip(-1)
        return pad(distort(image, self.config.distort), labels, self.config.crop_px)

    def _random_crop(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        h, w = labels.shape
        side = self.config.crop_px
        for _ in range(TRIES):
            top, left = random.randint(0, max(0, h - side)), random.randint(0, max(0, w - side))
            part = labels[top : top + side, left : left + side]
            if self.config.cat_max_ratio == 1 or is_mixed(part, self.config.cat_max_ratio):
                break
        return image[:, top : top + side, left : left + side], part


def is_mixed(labels: Tensor, most: float) -> bool:
    """Whether there are several classes, each with less than this share of the labelled pixels."""
    counts = torch.bincount(labels[labels != IGNORE].long())
    return int((counts > 0).sum()) > 1 and bool(counts.max() < most * counts.sum())


def resize(image: Tensor, labels: Tensor, short_px: float, long_px: float) -> tuple[Tensor, Tensor]:
    size = fit_within(labels.shape[0], labels.shape[1], short_px, long_px)
    if size == labels.shape:
        return image, labels
    image = resize_image(image[None].float(), size)[0].round().to(torch.uint8)
    labels = F.interpolate(labels[None, None].float(), size, mode="nearest-exact")[0, 0].to(labels.dtype)
    return image, labels


def resize_image(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize bilinearly without antialiasing, in training and in evaluation."""
    return F.interpolate(images, size, mode="bilinear", align_corners=False)


def pad(image: Tensor, labels: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Pad to a square on the right and at the bottom."""
    h, w = labels.shape
    if (h, w) == (side, side):
        return image, labels
    padded = torch.tensor(GROUND, dtype=torch.uint8)[:, None, None].repeat(1, side, side)
    padded[:, :h, :w] = image
    return padded, F.pad(labels, (0, side - w, 0, side - h), value=IGNORE)


def distort(image: Tensor, chance: float) -> Tensor:
    """Randomly change brightness, contrast, saturation and hue; contrast comes before or after the colours, as in SSD."""
    gain = random.uniform(0.5, 1.5) if random.random() < chance else 1.0
    shift = random.uniform(-32, 32) if random.random() < chance else 0.0
    saturation = random.uniform(0.5, 1.5) if random.random() < chance else 1.0
    hue = random.uniform(-0.1, 0.1) if random.random() < chance else 0.0  # fraction of the hue circle
    gain_first = random.random() < 0.5
    image = _to_bytes((image + shift).clamp(0, 255) * (gain if gain_first else 1.0))
    image = _adjust_colours(image, saturation, hue)
    return image if gain_first else _to_bytes(image * gain)


def _to_bytes(image: Tensor) -> Tensor:
    return image.clamp(0, 255).round().to(torch.uint8)


def _adjust_colours(image: Tensor, saturation: float, hue: float) -> Tensor:
    """Multiply the saturation by a factor and shift the hue by a fraction of its circle."""
    if saturation == 1 and hue == 0:
        return image
    pil_image = Image.fromarray(image.permute(1, 2, 0).numpy()).convert("HSV")
    h, s, v = (np.asarray(band) for band in pil_image.split())
    h = ((h.astype(np.int16) + round(256 * hue)) % 256).astype(np.uint8)
    s = np.clip(s * saturation + 0.5, 0, 255).astype(np.uint8)
    adjusted = Image.merge("HSV", [Image.fromarray(band) for band in (h, s, v)]).convert("RGB")
    return torch.from_numpy(np.array(adjusted)).permute(2, 0, 1)


@dataclass
class SegmentBatch:
    """Images with labels, of one size in training and of any size in evaluation, and the images that could not be read."""

    images: list[Tensor]  # (3, H, W), uint8
    labels: list[Tensor]  # (H, W)
    indices: list[int]  # in the dataset
    broken: list[Broken] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.images)


Example = tuple[Tensor, Tensor, int]  # image, labels, index


class SegmentationDataset(KeyedDataset):
    """Images with labels. A corrupt image yields `Broken`, in training together with a replacement.

    Args:
        order: The model's class index for each class of the dataset, if they differ.
    """

    def __init__(self, part: LabelSet, augment: Augment | None = None, order: Sequence[int] | None = None) -> None:
        self.part, self.augment, self.replace_broken = part, augment, augment is not None
        self.order = None if order is None else torch.tensor([*order, IGNORE], dtype=torch.int16)  # index -1 is IGNORE

    def __len__(self) -> int:
        return len(self.part.pairs)

    def read_example(self, index: int, key: SampleKey) -> Example | Broken:
        pair: Labelled = self.part.pairs[index]
        read = read_pair(pair, len(self.part.classes), self.part.first_label, self.part.colors)
        if isinstance(read, Broken):
            return read
        image, labels = to_tensor(read[0]), torch.from_numpy(read[1])
        if self.order is not None:
            labels = self.order[labels.long()]
        if self.augment is not None:
            with seeded(key.seed):
                image, labels = self.augment(image, labels)
        return image.contiguous(), labels, index


def collate(examples: Sequence[list[Example | Broken]]) -> SegmentBatch:
    good, broken = split_broken(examples)
    return SegmentBatch([g[0] for g in good], [g[1] for g in good], [g[2] for g in good], broken)


def normalise(images: Tensor) -> Tensor:
    """Normalise uint8 images with ImageNet's mean and standard deviation. (B, 3, H, W)"""
    stats = torch.tensor([IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD], device=images.device)
    mean, std = stats[..., None, None]  # (3, 1, 1)
    return (images.float() / 255 - mean) / std


def open_labelled(data: SegmentDataConfig, split: Literal["train", "validation"], world: World | None = None) -> LabelSet:
    """Read a split; missing scenes are generated first."""
    assert data.root is not None  # `check` has verified it
    if data.source == "scenes":
        ensure_scenes(data, world, ensure_ade20k)
    if not data.root.is_dir():
        raise ValueError(f"no folder {data.root}; set --data.root to the folder with the images and label maps")
    images, labels = (data.train_images, data.train_labels) if split == "train" else (data.val_images, data.val_labels)
    classes = _class_list(data, data.root)
    first_label = classes.first_label if data.first_label is None else data.first_label
    return read_labelled(data.root / images, data.root / labels, classes.names, first_label, classes.colors)


def _class_list(data: SegmentDataConfig, root: Path) -> ClassList:
    """The classes with their labels, or with their colours if these are asked for."""
    if data.colors is None:
        return find_classes(root, data.classes)
    coloured = find_classes(root, data.colors)
    if coloured.colors is None:
        raise ValueError(f"{data.colors} has no colour in its first line; write the lines of data.colors as 64 128 64 animal")
    if data.classes is not None and (names := find_classes(root, data.classes).names) != coloured.names:
        raise ValueError(f"data.classes has {listed(names)}, but data.colors {listed(coloured.names)}; leave out data.classes")
    return coloured
