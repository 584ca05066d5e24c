"""Datasets of classification: settings, preprocessing, batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.images import decode_image, describe_error
from tailprop.data.loader import KeyedDataset, split_broken
from tailprop.data.samplers import SampleKey
from tailprop.runtime.rng import seeded
from tailprop.tasks.classify.config import DataConfig
from tailprop.tasks.classify.sources import Digits, Folder, Parquet, Source, TimmDataset

__all__ = ["Batch", "ImageDataset", "collate", "open_source"]

_SAMPLE = 32  # images whose mean size estimates that of all
_OBJECT_BYTES = 1000  # overhead of a decoded image besides its pixels


Example = tuple[Tensor, int, int]  # image, label, seed of its augmentation


@dataclass
class Batch:
    """Images with labels, and broken files."""

    images: Tensor  # (B, C, H, W); uint8 in training, normalised in evaluation
    labels: Tensor  # (B,), class indices
    broken: list[Broken] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)  # of the augmentation of each image

    def __len__(self) -> int:
        return len(self.labels)

    def pin_memory(self) -> "Batch":  # called by DataLoader
        return Batch(self.images.pin_memory(), self.labels.pin_memory(), self.broken, self.seeds)


class ImageDataset(KeyedDataset):
    """Transformed images of a source. A broken one is returned as `Broken`, in training followed by a replacement."""

    def __init__(
        self, source: Source, transforms: Sequence[Any], mode: str, replace_broken: bool = False, cache_gb: float = 0.0
    ) -> None:
        self.source, self.transforms, self.mode, self.replace_broken = source, transforms, mode, replace_broken
        self.cache_limit, self.cached_bytes = cache_gb * 1e9, 0
        self.cache: dict[int, Image.Image] = {}

    def __len__(self) -> int:
        return len(self.source.labels)

    def read_example(self, index: int, key: SampleKey) -> Example | Broken:
        transform = self.transforms[min(int(key.progress * len(self.transforms)), len(self.transforms) - 1)]
        try:
            image = self._decode(index)
            with seeded(key.seed):
                return transform(image), int(self.source.labels[index]), key.seed
        except MemoryError:  # not a fault of the file
            raise
        except Exception as error:  # corrupt files raise many types in decoders, and unusual images in augmentation
            return Broken(self.source.name(index), describe_error(error))

    def _decode(self, index: int) -> Image.Image:
        """Decode an image, or take it from the cache. Images are cached only if all fit; caching a part would help little."""
        if index in self.cache:
            return self.cache[index]
        image = decode_image(self.source.read(index), self.mode)
        if self.cache_limit > 0:
            image.info = {}  # colour profiles and metadata may be larger than the image
            self.cache[index] = image
            self.cached_bytes += 4 * image.width * image.height + _OBJECT_BYTES
            mean = self.cached_bytes / len(self.cache)
            expected = mean * len(self) if len(self.cache) >= _SAMPLE else self.cached_bytes
            if expected > self.cache_limit:
                self.cache, self.cache_limit = {}, 0.0
        return image


def collate(examples: Sequence[list[Example | Broken]]) -> Batch:
    good, broken = split_broken(examples)
    images = torch.stack([image for image, _, _ in good]) if good else torch.empty(0)
    labels, seeds = torch.tensor([label for _, label, _ in good]), [seed for _, _, seed in good]
    return Batch(images, labels, broken, seeds)


def open_source(data: DataConfig, split: Literal["train", "validation"]) -> Source:
    if data.source == "digits":
        return Digits(split)
    if data.source == "timm":
        return TimmDataset(data.name, data.root, split, data.download)
    assert data.root is not None  # checked before
    if data.source == "parquet":
        return Parquet(data.root, split, data.cache_dir, data.unpack)
    return Folder(data.root, split, data.held_out)
