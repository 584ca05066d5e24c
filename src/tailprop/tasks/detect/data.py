"""Images with boxes and perhaps masks: settings, augmentation, batches, and a sampler that groups images by aspect ratio.

Shapes: N objects of an image, H height, W width. Boxes are x1, y1, x2, y2 in pixels. A target has masks if its dataset does.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.formats.coco import CocoImage, CocoSet, Masks, decode_masks, read_annotated, read_coco
from tailprop.data.images import describe_error
from tailprop.data.loader import KeyedDataset, split_broken
from tailprop.data.resize import fit_within
from tailprop.data.samplers import SampleKey, TrainSampler
from tailprop.data.shapes.write import ensure_coco
from tailprop.runtime.distributed import World
from tailprop.runtime.rng import mix_seeds, seeded
from tailprop.tasks.common.predictor import to_tensor
from tailprop.tasks.common.scenes import ensure_scenes
from tailprop.tasks.detect.config import DetectAugmentConfig, DetectDataConfig

__all__ = ["AspectRatioSampler", "Augment", "DetectBatch", "DetectionDataset", "collate", "open_coco"]

Target = dict[str, Tensor]


class Augment:
    """Resize an image with its boxes and masks, and randomly crop and flip it. Uses Python's global random generator."""

    def __init__(self, config: DetectAugmentConfig, long_px: int) -> None:
        self.config, self.long_px = config, long_px

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        c = self.config
        if random.random() < c.crop_chance:
            image, target = resize(image, target, random.choice(c.crop_short_px), self.long_px)
            image, target = self._random_crop(image, target)
        image, target = resize(image, target, random.choice(c.short_px), self.long_px)
        if random.random() < c.flip:
            image, target = mirror(image, target)
        return image, target

    def _random_crop(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        h, w = image.shape[-2:]
        least, most = self.config.crop_px
        height, width = (random.randint(min(least, side), min(most, side)) for side in (h, w))
        top, left = random.randint(0, h - height), random.randint(0, w - width)
        return cut(image, target, top, left, height, width)


def resize(image: Tensor, target: Target, short_px: int, long_px: int) -> tuple[Tensor, Target]:
    """Resize as the detector does in evaluation: bilinear, without antialiasing."""
    h, w = image.shape[-2:]
    size = fit_within(h, w, short_px, long_px)
    if size == (h, w):
        return image, target
    image = F.interpolate(image[None].float(), size, mode="bilinear", align_corners=False)[0]
    target = target | dict(boxes=target["boxes"] * torch.tensor([size[1] / w, size[0] / h]).repeat(2))
    if (masks := target.get("masks")) is not None:  # torch cannot interpolate an empty batch
        resized = F.interpolate(masks[:, None], size, mode="nearest-exact")[:, 0] if len(masks) else masks.new_zeros(0, *size)
        target["masks"] = resized
    return image.round().to(torch.uint8), target


def cut(image: Tensor, target: Target, top: int, left: int, height: int, width: int) -> tuple[Tensor, Target]:
    """Crop an image, and keep the objects that are still visible in it."""
    corner, size = torch.tensor([left, top]).repeat(2), torch.tensor([width, height]).repeat(2)
    boxes = torch.minimum((target["boxes"] - corner).clamp_min(0), size)
    target = target | dict(boxes=boxes)
    visible = ((boxes[:, 2:] - boxes[:, :2]) >= 1).all(1)
    if "masks" in target:
        target["masks"] = target["masks"][:, top : top + height, left : left + width]
        visible &= (target["masks"].flatten(1) > 0).any(1)
    image = image[:, top : top + height, left : left + width]
    return image, {name: values[visible] for name, values in target.items()}


def mirror(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    boxes, w = target["boxes"], image.shape[-1]
    boxes = torch.stack([w - boxes[:, 2], boxes[:, 1], w - boxes[:, 0], boxes[:, 3]], dim=1)
    masks = {"masks": target["masks"].flip(-1)} if "masks" in target else {}
    return image.flip(-1), target | dict(boxes=boxes) | masks


@dataclass
class DetectBatch:
    """Images of any size with their objects, and the images that could not be read."""

    images: list[Tensor]  # (3, H, W), bytes
    targets: list[Target]  # boxes (N, 4), labels (N,), perhaps masks (N, H, W)
    ids: list[int]  # of the images, as in the annotation file
    broken: list[Broken] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.images)


Example = tuple[Tensor, Target, int]  # image, objects, id


class DetectionDataset(KeyedDataset):
    """Images with their objects. A corrupt image yields `Broken`, in training together with a replacement.

    Without `augment`, for evaluation, objects are read only `with_targets`.
    """

    def __init__(
        self,
        images: Sequence[CocoImage],
        category_ids: Sequence[int],
        augment: Augment | None = None,
        with_targets: bool = False,
        with_masks: bool = True,
    ) -> None:
        self.images, self.augment, self.replace_broken = images, augment, augment is not None
        self.with_targets, self.with_masks = with_targets or augment is not None, with_masks
        self.labels = {category: label for label, category in enumerate(category_ids, start=1)}

    def __len__(self) -> int:
        return len(self.images)

    def read_example(self, index: int, key: SampleKey) -> Example | Broken:
        entry = self.images[index]
        try:
            image = to_tensor(read_annotated(entry))
            target = self._target(entry) if self.with_targets else {}
        except Exception as error:  # image and mask decoders raise many kinds of errors for corrupt files
            return Broken(str(entry.path), describe_error(error))
        if self.augment is None:
            return image, target, entry.id
        with seeded(key.seed):
            image, target = self.augment(image, target)
        return image.contiguous(), target, entry.id

    def _target(self, entry: CocoImage) -> Target:
        objects = entry.targets
        boxes = torch.tensor([a["bbox"] for a in objects], dtype=torch.float32).reshape(-1, 4)
        boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1).clamp_min(0)
        boxes = torch.minimum(boxes, torch.tensor([entry.width, entry.height], dtype=torch.float32).repeat(2))
        labels = torch.tensor([self.labels[a["category_id"]] for a in objects], dtype=torch.int64)
        target = dict(boxes=boxes, labels=labels)
        if self.with_masks:
            target["masks"] = torch.from_numpy(decode_masks(objects, entry.width, entry.height))
        return target


def collate(examples: Sequence[list[Example | Broken]]) -> DetectBatch:
    good, broken = split_broken(examples)
    return DetectBatch([g[0] for g in good], [g[1] for g in good], [g[2] for g in good], broken)


class AspectRatioSampler(TrainSampler):
    """Sample steps of only wide or only tall images, to reduce the padding in a batch.

    Each pass over the data splits a permutation into a wide and a tall group. As soon as a group has enough images for a step,
    that is for all processes and all accumulated batches, they form a step; the images left at the end form mixed steps. So a
    pass has as many steps as without grouping, and depends only on the seed and the number of the pass.
    """

    def __init__(self, wide: Sequence[bool], batch: int, seed: int, world: World, **settings: Any) -> None:
        super().__init__(len(wide), batch, seed, world, **settings)
        self.wide = tuple(wide)
        if self.count < self._step_size:
            raise ValueError(f"a step needs {self._step_size} images, but there are {self.count}; lower --optim.batch-size")

    @property
    def _step_size(self) -> int:
        """Images in a step, over all processes and accumulated batches."""
        return self.batch * self.world.size * self.accumulate

    def __iter__(self) -> Iterator[list[SampleKey]]:
        per_pass = self.count // self._step_size
        first_step = self.epoch * (self.steps if self.epoch_steps else per_pass)
        for step in range(self.start, self.steps):
            pass_index, place = divmod(first_step + step, per_pass)
            indices = _group_by_aspect(self.wide, self._step_size, mix_seeds(self.seed, pass_index))[place]
            for part in range(self.accumulate):
                first = (part * self.world.size + self.world.rank) * self.batch
                share = indices[first : first + self.batch]
                yield [SampleKey(i, mix_seeds(self.seed, pass_index, i), self.epoch / self.epochs) for i in share]


@lru_cache(maxsize=2)
def _group_by_aspect(wide: tuple[bool, ...], size: int, seed: int) -> list[list[int]]:
    """The image indices of each step of a pass."""
    batches: list[list[int]] = []
    groups: tuple[list[int], list[int]] = ([], [])
    for index in torch.randperm(len(wide), generator=torch.Generator().manual_seed(seed)).tolist():
        group = groups[wide[index]]
        group.append(index)
        if len(group) == size:
            batches.append(group.copy())
            group.clear()
    rest = groups[0] + groups[1]
    return batches + [rest[i : i + size] for i in range(0, len(rest) - size + 1, size)]


def open_coco(
    data: DetectDataConfig, split: Literal["train", "validation"], world: World | None = None, masks: Masks = "auto"
) -> CocoSet:
    """Read a split; missing scenes are generated first."""
    assert data.root is not None  # `check` has verified it
    if data.source == "scenes":
        ensure_scenes(data, world, ensure_coco)
    images, annotations = (data.train_images, data.train_json) if split == "train" else (data.val_images, data.val_json)
    return read_coco(data.root / annotations, data.root / images, masks)
