"""Pictures for classification: settings, augmentation, batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.images import prepare, reason_of
from tailprop.data.loader import Examples
from tailprop.data.samplers import Key
from tailprop.runtime.rng import mix, seeded
from tailprop.tasks.classify.sources import Digits, Folder, Parquet, Source, TimmDataset
from tailprop.utils.validation import check_at_least, check_between

__all__ = ["Batch", "DataConfig", "Pictures", "collate", "open_source"]

_REPLACEMENTS = 16  # tried for a broken picture
_SAMPLE = 32  # pictures from whose mean size that of all is told
_OBJECT_BYTES = 1000  # of a decoded picture besides its pixels


@dataclass(frozen=True)
class DataConfig:
    """The pictures."""

    source: Literal["folder", "parquet", "timm", "digits"] = "folder"
    """folder: one folder for each class; parquet: a Hugging Face snapshot; timm: a dataset by name; digits: embedded."""
    root: Path | None = None
    """Where the pictures are."""
    name: str = ""
    """timm's name of the dataset, for source timm; for example torch/cifar10."""
    download: bool = False
    """Let timm download the dataset."""
    unpack: bool = False
    """Unpack parquet shards into a cache once instead of reading them in place. Worth their size on disk if they are compressed
    and reading is what training waits for."""
    cache: Path | None = None
    """Where parquet shards are unpacked; none = the cache of the datasets library."""
    num_classes: int | None = None
    """Classes of the model; none = as many as the data has."""
    size_px: int = 224
    """Side of the pictures the model is evaluated on."""
    train_px: tuple[int, ...] = ()
    """Sides of the pictures in training, from the first epochs to the last; none = size_px. Small ones first save time."""
    resize_px: int | None = 256
    """Shorter side before the central crop of evaluation; none = size_px, so that nothing is cut off."""
    held_out: float = 0.2
    """Share held out for validation when a folder has no split of its own."""
    on_broken: Literal["skip", "stop"] = "stop"
    """A picture that cannot be read: skip and count it, or stop."""
    workers: int = 2
    """Loader processes for each training process."""
    keep_gb: float = 1.0
    """Pictures are decoded once and kept if all of them fit into so many gigabytes, which loader processes share; 0 = never."""

    def check(self) -> None:
        check_at_least("data.size_px", self.size_px, 32)
        check_at_least("data.workers", self.workers, 0)
        check_at_least("data.keep_gb", self.keep_gb, 0)
        for side in self.train_px:
            check_at_least("data.train_px", side, 32)
        if self.num_classes is not None:
            check_at_least("data.num_classes", self.num_classes, 1)
        check_between("data.held_out", self.held_out, 0, 1)
        if self.resize_px is not None:
            check_at_least("data.resize_px", self.resize_px, self.size_px)
        if self.source == "timm" and not self.name:
            raise ValueError("source timm needs --data.name, for example torch/cifar10")
        if self.source == "timm" and self.root is None and not self.name.startswith("hfds/"):
            raise ValueError(f"timm's {self.name} needs --data.root, the folder it is in or is downloaded to")
        if self.root is None and self.source in ("folder", "parquet"):
            raise ValueError(f"a {self.source} needs --data.root, the folder the pictures are in")


Example = tuple[Tensor, int, int]  # picture, label, seed of its augmentation


@dataclass
class Batch:
    """Pictures with labels, and what could not be read."""

    images: Tensor  # (B, C, H, W); bytes in training, normalised in evaluation
    labels: Tensor  # (B,)
    broken: list[Broken] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)  # of each picture's augmentation

    def __len__(self) -> int:
        return len(self.labels)

    def pin_memory(self) -> "Batch":  # called by the loader
        return Batch(self.images.pin_memory(), self.labels.pin_memory(), self.broken, self.seeds)


class Pictures(Examples):
    """Transformed pictures of a source. A broken one comes as `Broken`, in training with another in its place."""

    def __init__(
        self, source: Source, transforms: Sequence[Any], mode: str, replace_broken: bool = False, keep_gb: float = 0.0
    ) -> None:
        self.source, self.transforms, self.mode, self.replace_broken = source, transforms, mode, replace_broken
        self.room, self.taken = keep_gb * 1e9, 0  # bytes
        self.kept: dict[int, Image.Image] = {}

    def __len__(self) -> int:
        return len(self.source.labels)

    def __getitem__(self, key: Key) -> list[Example | Broken]:
        found = [self._read(key.index, key)]
        while self.replace_broken and isinstance(found[-1], Broken) and len(found) <= _REPLACEMENTS:
            # From anywhere: neighbours are often broken together, as the rows of a damaged page are.
            found.append(self._read(mix(key.seed, len(found), 4) % len(self), key))
        return found

    def _read(self, index: int, key: Key) -> Example | Broken:
        transform = self.transforms[min(int(key.progress * len(self.transforms)), len(self.transforms) - 1)]
        try:
            picture = self._decode(index)
            with seeded(key.seed):
                return transform(picture), int(self.source.labels[index]), key.seed
        except MemoryError:  # that is the machine's fault
            raise
        except Exception as error:  # a decoder trips over damage in many ways, and so may augmentation over odd pictures
            return Broken(self.source.name(index), reason_of(error))

    def _decode(self, index: int) -> Image.Image:
        """A picture, kept if there is room for all: of a set that does not fit, keeping a part would help little."""
        if index in self.kept:
            return self.kept[index]
        picture = prepare(self.source.read(index), self.mode)
        if self.room > 0:
            picture.info = {}  # colour profiles and notes may be larger than the picture
            self.kept[index] = picture
            self.taken += 4 * picture.width * picture.height + _OBJECT_BYTES
            expected = self.taken / len(self.kept) * len(self) if len(self.kept) >= _SAMPLE else self.taken
            if expected > self.room:
                self.kept, self.room = {}, 0.0
        return picture


def collate(examples: Sequence[list[Example | Broken]]) -> Batch:
    found = [item for example in examples for item in example]
    good = [item for item in found if not isinstance(item, Broken)]
    images = torch.stack([image for image, _, _ in good]) if good else torch.empty(0)
    labels, seeds = torch.tensor([label for _, label, _ in good]), [seed for _, _, seed in good]
    return Batch(images, labels, [item for item in found if isinstance(item, Broken)], seeds)


def open_source(data: DataConfig, split: Literal["train", "validation"]) -> Source:
    if data.source == "digits":
        return Digits(split)
    if data.source == "timm":
        return TimmDataset(data.name, data.root, split, data.download)
    assert data.root is not None  # checked before
    if data.source == "parquet":
        return Parquet(data.root, split, data.cache, data.unpack)
    return Folder(data.root, split, data.held_out)
