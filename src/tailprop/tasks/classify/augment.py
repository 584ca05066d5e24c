"""Augmentation for training and preprocessing for evaluation.

The crop and the policies (RandAugment, AutoAugment, AugMix) are timm's, pixel for pixel, by a shorter way: around the crop of a
small image timm's and torchvision's steps spend more time on checks of types and sizes than on the image, and on a CPU that
is time the model does not get.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, create_transform
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import RandomResizedCropAndInterpolation, str_to_pil_interp
from torch import Tensor
from torchvision.transforms import Compose

from tailprop.data.images import crop_long_strip
from tailprop.data.loader import to_device
from tailprop.runtime.rng import mix_seeds, seeded
from tailprop.tasks.classify.data import DataConfig
from tailprop.utils.validation import check_at_least, check_between, check_choice

__all__ = [
    "AugmentConfig",
    "BatchAugment",
    "RandomResizedCrop",
    "eval_transform",
    "jitter_colors",
    "normalisation",
    "operations",
    "timm_policy",
    "train_transforms",
]


_INTERPOLATIONS = ("bicubic", "bilinear", "lanczos", "nearest", "box", "random")


_POLICIES = ("rand", "original", "v0", "augmix", "3a")


@dataclass(frozen=True)
class AugmentConfig:
    """Augmentation while training."""

    scale: tuple[float, float] = (0.08, 1.0)
    """Area of the random crop over that of the image."""
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
    """How images are resized."""
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


class RandomResizedCrop:
    """A random part of an image, resized to a square and mirrored by chance; bytes, (C, side, side).

    Args:
        side: Of the square, in pixels.
        scale: Area of the part over that of the image, from and to.
        ratio: Width over height of the part, from and to.
        flip: Chance of a mirror image.
        interpolation: As timm spells it; random = bilinear or bicubic, by chance.
        policy: What else is done to the square, such as RandAugment.
    """

    def __init__(
        self,
        side: int,
        scale: tuple[float, float],
        ratio: tuple[float, float],
        flip: float,
        interpolation: str,
        policy: Callable[[Image.Image], Image.Image] | None = None,
    ) -> None:
        self.side, self.scale, self.ratio, self.flip, self.policy = side, scale, ratio, flip, policy
        names = ("bilinear", "bicubic") if interpolation == "random" else (interpolation,)
        self.resamplings = [str_to_pil_interp(name) for name in names]

    def part(self, image: Image.Image) -> tuple[int, int, int, int]:
        """Left, upper, right and lower edge, drawn from Python's generator."""
        top, left, height, width = RandomResizedCropAndInterpolation.get_params(image, self.scale, self.ratio)
        return left, top, left + width, top + height

    def __call__(self, image: Image.Image) -> Tensor:
        part = image.crop(self.part(image))
        resampling = self.resamplings[0] if len(self.resamplings) == 1 else random.choice(self.resamplings)
        square = part.resize((self.side, self.side), resampling)
        if random.random() < self.flip:
            square = square.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.policy is not None:
            square = self.policy(square)
        pixels = torch.from_numpy(np.array(square))  # (side, side) or (side, side, C)
        return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def timm_policy(name: str, side: int, mean: Sequence[float], interpolation: str) -> Callable[[Image.Image], Image.Image]:
    """What timm does between the crop and the tensor.

    Args:
        name: As timm spells it, for example rand-m9-mstd0.5-inc1.
        side: Of the crop, in pixels; how far an image may be shifted depends on it.
        mean: Of each channel, 0 to 1: the colour of what comes into the image at its edges.
        interpolation: As timm spells it.
    """
    try:
        whole = create_transform(
            side,
            is_training=True,
            hflip=0.0,
            color_jitter=None,
            auto_augment=name,
            interpolation=interpolation,
            mean=tuple(mean),
            normalize=False,
        )
    except (AssertionError, ValueError, KeyError, IndexError) as error:
        raise ValueError(f"timm does not understand augment.auto_augment {name!r}: {error}") from None
    _crop, policy, _to_tensor = whole.transforms
    for op in operations(policy):
        if op.name.startswith("Posterize"):  # timm may ask for 0 bits of a colour: black, until Pillow began to refuse it
            op.aug_fn = _posterize
    return policy


def operations(policy: Any) -> list[Any]:
    """The operations of a policy, whichever it is."""
    groups = [*getattr(policy, "policy", ()), getattr(policy, "ops", ()), getattr(policy, "augs", ())]
    return [op for group in groups for op in group if hasattr(op, "aug_fn")]


def _posterize(image: Image.Image, bits: int, **_: Any) -> Image.Image:
    if bits >= 8:
        return image
    return ImageOps.posterize(image, bits) if bits > 0 else Image.new(image.mode, image.size)


def normalisation(in_chans: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD) if in_chans == 3 else ((0.5,) * in_chans, (0.5,) * in_chans)


def train_transforms(data: DataConfig, augment: AugmentConfig, in_chans: int = 3) -> list[RandomResizedCrop]:
    """One for each size of training, in order."""
    return [_train_transform(side, augment, in_chans) for side in data.train_px or (data.size_px,)]


def _train_transform(side: int, augment: AugmentConfig, in_chans: int) -> RandomResizedCrop:
    mean, _ = normalisation(in_chans)
    name, resizing = augment.auto_augment, augment.interpolation
    policy = None if name is None else timm_policy(name, side, mean, resizing)
    return RandomResizedCrop(side, augment.scale, augment.ratio, augment.flip, resizing, policy)


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
    crop = data.size_px / (data.eval_resize_px + 0.5)
    interpolation = "bicubic" if augment.interpolation == "random" else augment.interpolation
    how = dict(interpolation=interpolation, crop_pct=crop, crop_mode=crop_mode, mean=mean, std=std)
    steps = create_transform(data.size_px, **how).transforms
    return Compose(
        [crop_long_strip, *steps] if crop_mode in (None, "center") else steps
    )  # the others never enlarge beyond the size


class BatchAugment:
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
            images = jitter_colors(images, self._factors(seeds, images.device))
        images = images.sub_(self.mean).div_(self.std)
        if self.chance == 0:
            return images
        chosen = [i for i, seed in enumerate(seeds) if random.Random(mix_seeds(seed, 2)).random() < self.chance]
        if images.device.type == "cpu":
            self._erase((images[i] for i in chosen), (seeds[i] for i in chosen))
        elif chosen:
            images = self._erase_elsewhere(images, chosen, seeds)
        return images

    def _erase(self, images: Iterable[Tensor], seeds: Iterable[int]) -> None:
        for image, seed in zip(images, seeds, strict=True):
            with seeded(mix_seeds(seed, 3)):
                self.erase(image)  # in place

    def _erase_elsewhere(self, images: Tensor, chosen: Sequence[int], seeds: Sequence[int]) -> Tensor:
        """The same noise for images on a GPU, brought there at once: it would be waited for at every rectangle."""
        patches = torch.full((len(chosen), *images.shape[1:]), torch.nan, pin_memory=images.device.type == "cuda")
        self._erase(patches, (seeds[i] for i in chosen))
        noise, place = to_device(patches, images.device), to_device(torch.tensor(chosen), images.device)
        return images.index_copy(0, place, torch.where(noise.isnan(), images[place], noise))

    def _factors(self, seeds: Sequence[int], device: torch.device) -> Tensor:  # (3, B, 1, 1, 1)
        low, high = max(0.0, 1 - self.jitter), 1 + self.jitter
        drawn = [[generator.uniform(low, high) for _ in range(3)] for generator in _generators(seeds, 1)]
        return torch.tensor(drawn, device=device).T[..., None, None, None]


def _generators(seeds: Sequence[int], stream: int) -> Iterator[random.Random]:
    """A generator for each image; each kind of augmentation has a stream of its own, or crop, colour and erasing would go
    together.
    """
    return (random.Random(mix_seeds(seed, stream)) for seed in seeds)


def jitter_colors(images: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast and saturation times a factor for each image; values from 0 to 255, (B, C, H, W)."""
    brightness, contrast, saturation = factors
    images = (images * brightness).clamp_(0, 255)
    images.lerp_(_gray(images).mean((2, 3), keepdim=True), 1 - contrast).clamp_(0, 255)
    return images.lerp_(_gray(images), 1 - saturation).clamp_(0, 255)


def _gray(images: Tensor) -> Tensor:  # (B, C, H, W) -> (B, 1, H, W)
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    return (red * 0.299).add_(green, alpha=0.587).add_(blue, alpha=0.114)  # BT.601, as Pillow
