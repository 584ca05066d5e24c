"""Pictures for classification: settings, augmentation, batches."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, create_transform
from timm.data.random_erasing import RandomErasing
from torch import Tensor
from torchvision.transforms import Compose

from tailprop.checks import check_at_least, check_between, check_choice
from tailprop.data.cut import RandomCut
from tailprop.data.loading import Broken, Examples, Key, to_device
from tailprop.data.pictures import prepare, reason_of, shorten
from tailprop.data.policies import timm_policy
from tailprop.data.sources import Digits, Folder, Parquet, Source, TimmDataset
from tailprop.generators import mix, seeded

__all__ = [
    "AugmentConfig",
    "Batch",
    "DataConfig",
    "Finish",
    "Pictures",
    "collate",
    "eval_transform",
    "open_source",
    "train_transforms",
]

_REPLACEMENTS = 16  # tried for a broken picture
_SAMPLE = 32  # pictures from whose mean size that of all is told
_OBJECT_BYTES = 1000  # of a decoded picture besides its pixels
_INTERPOLATIONS = ("bicubic", "bilinear", "lanczos", "nearest", "box", "random")
_POLICIES = ("rand", "original", "v0", "augmix", "3a")


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


@dataclass(frozen=True)
class AugmentConfig:
    """Augmentation while training."""

    scale: tuple[float, float] = (0.08, 1.0)
    """Area of the random crop over that of the picture."""
    ratio: tuple[float, float] = (0.75, 4 / 3)
    """Aspect ratio of the random crop."""
    flip: float = 0.5
    """Chance of a mirror image."""
    color_jitter: float = 0.4
    """Change of brightness, contrast and saturation, where RandAugment is not used; 0 = none."""
    auto_augment: str | None = "rand-m9-mstd0.5-inc1"
    """RandAugment, in timm's spelling; none = off."""
    erase: float = 0.25
    """Chance of a random rectangle of noise."""
    interpolation: str = "bicubic"
    """How pictures are resized."""
    mixup: float = 0.8
    """Mixup's alpha; 0 = off."""
    cutmix: float = 1.0
    """CutMix's alpha; 0 = off."""
    mix_prob: float = 1.0
    """Share of the batches that mixup or CutMix is applied to."""
    smoothing: float = 0.1
    """Label smoothing."""

    def check(self) -> None:
        for name in ("flip", "erase", "mix_prob", "smoothing"):
            check_between(f"augment.{name}", getattr(self, name), 0, 1)
        for name in ("color_jitter", "mixup", "cutmix"):
            check_at_least(f"augment.{name}", getattr(self, name), 0)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"augment.scale rises within (0, 1], got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"augment.ratio rises from above 0, got {self.ratio}")
        check_choice("augment.interpolation", self.interpolation, _INTERPOLATIONS)
        if self.auto_augment is not None and not self.auto_augment.startswith(_POLICIES):
            raise ValueError(f"augment.auto_augment is spelt as in timm, as rand-m9-mstd0.5-inc1; got {self.auto_augment!r}")


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


def normalisation(in_chans: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD) if in_chans == 3 else ((0.5,) * in_chans, (0.5,) * in_chans)


def train_transforms(data: DataConfig, augment: AugmentConfig, in_chans: int = 3) -> list[RandomCut]:
    """One for each size of training, in order."""
    return [_train_transform(side, augment, in_chans) for side in data.train_px or (data.size_px,)]


def _train_transform(side: int, augment: AugmentConfig, in_chans: int) -> RandomCut:
    mean, _ = normalisation(in_chans)
    name, resizing = augment.auto_augment, augment.interpolation
    policy = None if name is None else timm_policy(name, side, mean, resizing)
    return RandomCut(side, augment.scale, augment.ratio, augment.flip, resizing, policy)


class Finish:
    """The end of training's augmentation, on whole batches and on their device: colour jitter, normalisation, erasing.

    The loader would do the same one by one, and it has enough to do.
    """

    def __init__(self, augment: AugmentConfig, in_chans: int, device: torch.device) -> None:
        mean, std = normalisation(in_chans)
        self.mean, self.std = (torch.tensor(v, device=device).reshape(-1, 1, 1) * 255 for v in (mean, std))
        has_colours = augment.auto_augment is not None and not augment.auto_augment.startswith("3a")  # of its own
        self.jitter = 0.0 if has_colours else augment.color_jitter
        self.chance = augment.erase
        self.erase = RandomErasing(probability=1.0, mode="pixel", device="cpu")  # drawn where the seed is

    def __call__(self, images: Tensor, seeds: Sequence[int]) -> Tensor:
        images = images.float()
        if self.jitter > 0:
            images = jitter_colours(images, self._factors(seeds, images.device))
        images = images.sub_(self.mean).div_(self.std)
        if self.chance == 0:
            return images
        chosen = [i for i, seed in enumerate(seeds) if random.Random(mix(seed, 2)).random() < self.chance]
        if images.device.type == "cpu":
            self._erase((images[i] for i in chosen), (seeds[i] for i in chosen))
        elif chosen:
            images = self._erase_elsewhere(images, chosen, seeds)
        return images

    def _erase(self, images: Iterable[Tensor], seeds: Iterable[int]) -> None:
        for image, seed in zip(images, seeds, strict=True):
            with seeded(mix(seed, 3)):
                self.erase(image)  # in place

    def _erase_elsewhere(self, images: Tensor, chosen: Sequence[int], seeds: Sequence[int]) -> Tensor:
        """The same noise for pictures on a GPU, brought there at once: it would be waited for at every rectangle."""
        patches = torch.full((len(chosen), *images.shape[1:]), torch.nan, pin_memory=images.device.type == "cuda")
        self._erase(patches, (seeds[i] for i in chosen))
        noise, place = to_device(patches, images.device), to_device(torch.tensor(chosen), images.device)
        return images.index_copy(0, place, torch.where(noise.isnan(), images[place], noise))

    def _factors(self, seeds: Sequence[int], device: torch.device) -> Tensor:  # (3, B, 1, 1, 1)
        low, high = max(0.0, 1 - self.jitter), 1 + self.jitter
        drawn = [[generator.uniform(low, high) for _ in range(3)] for generator in _generators(seeds, 1)]
        return torch.tensor(drawn, device=device).T[..., None, None, None]


def _generators(seeds: Sequence[int], stream: int) -> Iterator[random.Random]:
    """A generator for each picture; each kind of augmentation has a stream of its own, or crop, colour and erasing would go
    together.
    """
    return (random.Random(mix(seed, stream)) for seed in seeds)


def jitter_colours(images: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast and saturation times a factor for each picture; values from 0 to 255, (B, C, H, W)."""
    brightness, contrast, saturation = factors
    images = (images * brightness).clamp_(0, 255)
    images.lerp_(_gray(images).mean((2, 3), keepdim=True), 1 - contrast).clamp_(0, 255)
    return images.lerp_(_gray(images), 1 - saturation).clamp_(0, 255)


def _gray(images: Tensor) -> Tensor:  # (B, C, H, W) -> (B, 1, H, W)
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    return (red * 0.299).add_(green, alpha=0.587).add_(blue, alpha=0.114)  # BT.601, as Pillow


def eval_transform(
    data: DataConfig,
    augment: AugmentConfig,
    in_chans: int = 3,
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
    crop_mode: str | None = None,
) -> Any:
    """Preparation for evaluation; a foreign model may have a mean and deviation, and a way to crop, of its own."""
    mean, std = statistics or normalisation(in_chans)
    # timm rounds size / crop down; the half keeps 93 from becoming 92
    crop = data.size_px / ((data.resize_px or data.size_px) + 0.5)
    interpolation = "bicubic" if augment.interpolation == "random" else augment.interpolation
    how = dict(interpolation=interpolation, crop_pct=crop, crop_mode=crop_mode, mean=mean, std=std)
    steps = create_transform(data.size_px, **how).transforms
    return Compose([shorten, *steps] if crop_mode in (None, "center") else steps)  # the others never enlarge beyond the size
