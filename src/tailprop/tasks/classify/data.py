"""Datasets of classification: settings, preprocessing, batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.images import decode_image, describe_error
from tailprop.data.loader import KeyedDataset, split_broken
from tailprop.data.samplers import SampleKey
from tailprop.engine.settings import setting
from tailprop.runtime.distributed import print_main
from tailprop.runtime.rng import seeded
from tailprop.tasks.classify.sources import Digits, Folder, Parquet, Source, TimmDataset
from tailprop.tasks.common.task import LoaderConfig
from tailprop.utils.validation import check_at_least, check_between

__all__ = ["Batch", "DataConfig", "ImageDataset", "collate", "open_source"]

_SAMPLE = 32  # images whose mean size estimates that of all
_OBJECT_BYTES = 1000  # overhead of a decoded image besides its pixels
_SMALL_CROP = 0.8  # crop_pct below which a note is printed


@dataclass(frozen=True)
class DataConfig(LoaderConfig):
    """The dataset."""

    source: Literal["folder", "parquet", "timm", "digits"] = "folder"
    """folder: one folder for each class; parquet: a Hugging Face snapshot; timm: a dataset by name; digits: scikit-learn's."""
    root: Path | None = setting(None, local=True)
    """Root folder of the dataset."""
    name: str = ""
    """timm's dataset name for source timm, for example torch/cifar10."""
    download: bool = setting(False, local=True)
    """Let timm download the dataset."""
    unpack: bool = setting(False, local=True)
    """Unpack parquet shards into a cache once instead of reading them in place. Useful if they are compressed and the loader is
    the bottleneck; takes their size on disk."""
    cache_dir: Path | None = setting(None, local=True, aliases=("cache",))
    """Folder for unpacked parquet shards; none = the cache of the datasets library."""
    num_classes: int | None = None
    """Number of classes of the model; none = that of the dataset."""
    size_px: int = 224
    """Image size in evaluation."""
    train_px: tuple[int, ...] = ()
    """Image sizes in training, from the first epochs to the last; none = size_px. Starting with small ones saves time."""
    crop_pct: float = 0.875
    """Side of the center crop in evaluation as a fraction of the resized shorter side; 1 = no crop."""
    resize_px: int | None = None
    """Shorter side before the center crop; none = size_px / crop_pct."""
    held_out: float = 0.2
    """Fraction held out for validation if a folder has no validation split."""
    cache_gb: float = setting(1.0, local=True, aliases=("keep_gb",))
    """Cache decoded images if all of them fit into this many GB, divided among the loader processes; 0 = no cache."""

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Convert an old resize_px to crop_pct, so that the proportion is kept at another size; none meant no crop."""
        if "resize_px" in values and "crop_pct" not in values:
            resize, size = values.pop("resize_px"), values.get("size_px", DataConfig.size_px)
            if isinstance(resize, int | None) and isinstance(size, int):
                return values | {"crop_pct": size / resize if resize else 1.0}
            values["resize_px"] = resize  # of a wrong type, which raises an error with its name
        return values

    @property
    def eval_resize_px(self) -> int:
        """Shorter side before the center crop of evaluation."""
        return self.resize_px or round(self.size_px / self.crop_pct)

    def at_size(self, size_px: int | None) -> "DataConfig":
        """The same settings for another image size, with the same crop_pct."""
        if size_px is None:
            return self
        return replace(self, size_px=size_px, resize_px=None, crop_pct=self.size_px / self.eval_resize_px)

    def check(self) -> None:
        super().check()
        check_at_least("data.size_px", self.size_px, 32)
        check_at_least("data.cache_gb", self.cache_gb, 0)
        for side in self.train_px:
            check_at_least("data.train_px", side, 32)
        if self.num_classes is not None:
            check_at_least("data.num_classes", self.num_classes, 1)
        check_between("data.held_out", self.held_out, 0, 1)
        if not 0 < self.crop_pct <= 1:
            raise ValueError(f"data.crop_pct must be in (0, 1], got {self.crop_pct}; it is data.size_px / data.resize_px")
        if self.resize_px is not None:
            check_at_least("data.resize_px", self.resize_px, self.size_px)
        self._check_source()

    def _check_source(self) -> None:
        if self.source == "timm" and not self.name:
            raise ValueError("source timm needs --data.name, for example torch/cifar10")
        if self.source == "timm" and self.root is None and not self.name.startswith("hfds/"):
            raise ValueError(f"timm's {self.name} needs --data.root, the folder of the dataset or of the download")
        if self.root is None and self.source in ("folder", "parquet"):
            raise ValueError(f"source {self.source} needs --data.root, the folder of the dataset")

    def warn_of_small_crop(self) -> None:
        """Print a note if evaluation crops a small part of each image, which is rarely intended."""
        if self.size_px / self.eval_resize_px < _SMALL_CROP:
            print_main(
                f"evaluation crops the central {self.size_px} of {self.eval_resize_px} px; for a larger crop, lower "
                "--data.resize-px or raise --data.crop-pct"
            )


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
