"""Images for classification: settings, augmentation, batches."""

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

_SAMPLE = 32  # images from whose mean size that of all is told
_OBJECT_BYTES = 1000  # of a decoded image besides its pixels
_SMALL_CROP = 0.8  # side of the central crop over that of the image, below which it is said


@dataclass(frozen=True)
class DataConfig(LoaderConfig):
    """The images."""

    source: Literal["folder", "parquet", "timm", "digits"] = "folder"
    """folder: one folder for each class; parquet: a Hugging Face snapshot; timm: a dataset by name; digits: embedded."""
    root: Path | None = setting(None, local=True)
    """Where the images are."""
    name: str = ""
    """timm's name of the dataset, for source timm; for example torch/cifar10."""
    download: bool = setting(False, local=True)
    """Let timm download the dataset."""
    unpack: bool = setting(False, local=True)
    """Unpack parquet shards into a cache once instead of reading them in place. Worth their size on disk if they are compressed
    and reading is what training waits for."""
    cache_dir: Path | None = setting(None, local=True, aliases=("cache",))
    """Where parquet shards are unpacked; none = the cache of the datasets library."""
    num_classes: int | None = None
    """Classes of the model; none = as many as the data has."""
    size_px: int = 224
    """Side of the images the model is evaluated on."""
    train_px: tuple[int, ...] = ()
    """Sides of the images in training, from the first epochs to the last; none = size_px. Small ones first save time."""
    crop_pct: float = 0.875
    """Side of the central crop of evaluation over the shorter side of the image; 1 = nothing is cut off."""
    resize_px: int | None = None
    """Shorter side before that crop; none = size_px / crop_pct."""
    held_out: float = 0.2
    """Share held out for validation when a folder has no split of its own."""
    cache_gb: float = setting(1.0, local=True, aliases=("keep_gb",))
    """Images are decoded once and kept if all of them fit into so many gigabytes, which loader processes share; 0 = never."""

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """A recipe that gives resize_px means its proportion to size_px, which it keeps at another size; none meant no crop."""
        if "resize_px" in values and "crop_pct" not in values:
            resize, size = values.pop("resize_px"), values.get("size_px", DataConfig.size_px)
            if isinstance(resize, int | None) and isinstance(size, int):
                return values | {"crop_pct": size / resize if resize else 1.0}
            values["resize_px"] = resize  # of a wrong type, which is refused by its name
        return values

    @property
    def eval_resize_px(self) -> int:
        """Shorter side before the central crop of evaluation."""
        return self.resize_px or round(self.size_px / self.crop_pct)

    def at_size(self, size_px: int | None) -> "DataConfig":
        """The same for another size, cropped in the same proportion."""
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
            raise ValueError(f"data.crop_pct lies in (0, 1], got {self.crop_pct}; it is data.size_px over data.resize_px")
        if self.resize_px is not None:
            check_at_least("data.resize_px", self.resize_px, self.size_px)
        self._check_source()

    def _check_source(self) -> None:
        if self.source == "timm" and not self.name:
            raise ValueError("source timm needs --data.name, for example torch/cifar10")
        if self.source == "timm" and self.root is None and not self.name.startswith("hfds/"):
            raise ValueError(f"timm's {self.name} needs --data.root, the folder it is in or is downloaded to")
        if self.root is None and self.source in ("folder", "parquet"):
            raise ValueError(f"a {self.source} needs --data.root, the folder the images are in")

    def warn_of_small_crop(self) -> None:
        """Say if evaluation looks at a small part of each image, which is rarely meant."""
        if self.size_px / self.eval_resize_px < _SMALL_CROP:
            print_main(
                f"evaluation sees the central {self.size_px} of {self.eval_resize_px} px; to see more, lower --data.resize-px "
                f"or raise --data.crop-pct"
            )


Example = tuple[Tensor, int, int]  # image, label, seed of its augmentation


@dataclass
class Batch:
    """Images with labels, and what could not be read."""

    images: Tensor  # (B, C, H, W); bytes in training, normalised in evaluation
    labels: Tensor  # (B,)
    broken: list[Broken] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)  # of each image's augmentation

    def __len__(self) -> int:
        return len(self.labels)

    def pin_memory(self) -> "Batch":  # called by the loader
        return Batch(self.images.pin_memory(), self.labels.pin_memory(), self.broken, self.seeds)


class ImageDataset(KeyedDataset):
    """Transformed images of a source. A broken one comes as `Broken`, in training with another in its place."""

    def __init__(
        self, source: Source, transforms: Sequence[Any], mode: str, replace_broken: bool = False, cache_gb: float = 0.0
    ) -> None:
        self.source, self.transforms, self.mode, self.replace_broken = source, transforms, mode, replace_broken
        self.room, self.taken = cache_gb * 1e9, 0  # bytes
        self.kept: dict[int, Image.Image] = {}

    def __len__(self) -> int:
        return len(self.source.labels)

    def read_example(self, index: int, key: SampleKey) -> Example | Broken:
        transform = self.transforms[min(int(key.progress * len(self.transforms)), len(self.transforms) - 1)]
        try:
            image = self._decode(index)
            with seeded(key.seed):
                return transform(image), int(self.source.labels[index]), key.seed
        except MemoryError:  # that is the machine's fault
            raise
        except Exception as error:  # a decoder trips over corrupt files in many ways, and so may augmentation over odd images
            return Broken(self.source.name(index), describe_error(error))

    def _decode(self, index: int) -> Image.Image:
        """An image, kept if there is room for all: of a set that does not fit, keeping a part would help little."""
        if index in self.kept:
            return self.kept[index]
        image = decode_image(self.source.read(index), self.mode)
        if self.room > 0:
            image.info = {}  # colour profiles and notes may be larger than the image
            self.kept[index] = image
            self.taken += 4 * image.width * image.height + _OBJECT_BYTES
            expected = self.taken / len(self.kept) * len(self) if len(self.kept) >= _SAMPLE else self.taken
            if expected > self.room:
                self.kept, self.room = {}, 0.0
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
