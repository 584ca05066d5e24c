"""Augmentation for training and preprocessing for evaluation.

The crop and the policies (RandAugment, AutoAugment, AugMix) give the same pixels as timm's, with less overhead: on small images
timm's and torchvision's transforms spend more time on checks of types and sizes than on pixels, and when training on a CPU the
model needs that time.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from tailprop.tasks.classify.config import AugmentConfig, DataConfig

__all__ = [
    "BatchAugment",
    "RandomResizedCrop",
    "eval_transform",
    "jitter_colors",
    "normalisation",
    "operations",
    "timm_policy",
    "train_transforms",
]


class RandomResizedCrop:
    """A random crop, resized to a square and randomly flipped, as uint8 (C, side, side).

    Args:
        side: Side of the square in pixels.
        scale: Range of the area of the crop as a fraction of the image.
        ratio: Range of the aspect ratio (width over height) of the crop.
        flip: Probability of a horizontal flip.
        interpolation: timm's name; random = bilinear or bicubic at random.
        policy: Further augmentation of the square, such as RandAugment.
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
        """Left, upper, right and lower edge of a random crop, drawn from Python's generator."""
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
    """timm's auto-augment policy, applied between the crop and the tensor.

    Args:
        name: timm's policy string, for example rand-m9-mstd0.5-inc1.
        side: Side of the crop in pixels; the largest translation depends on it.
        mean: Mean of each channel, 0 to 1: the fill colour.
        interpolation: timm's name.
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
        raise ValueError(f"timm does not accept augment.auto_augment {name!r}: {error}") from None
    _crop, policy, _to_tensor = whole.transforms
    for op in operations(policy):
        if op.name.startswith("Posterize"):  # timm may request 0 bits, which means black; recent versions of Pillow reject it
            op.aug_fn = _posterize
    return policy


def operations(policy: Any) -> list[Any]:
    """The operations of any kind of policy."""
    groups = [*getattr(policy, "policy", ()), getattr(policy, "ops", ()), getattr(policy, "augs", ())]
    return [op for group in groups for op in group if hasattr(op, "aug_fn")]


def _posterize(image: Image.Image, bits: int, **_: Any) -> Image.Image:
    if bits >= 8:
        return image
    return ImageOps.posterize(image, bits) if bits > 0 else Image.new(image.mode, image.size)


def normalisation(in_chans: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD) if in_chans == 3 else ((0.5,) * in_chans, (0.5,) * in_chans)


def train_transforms(data: DataConfig, augment: AugmentConfig, in_chans: int = 3) -> list[RandomResizedCrop]:
    """The training transforms, one for each training size, in order."""
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
    """Preprocessing for evaluation; a pretrained timm model may have its own mean, standard deviation and crop mode."""
    mean, std = statistics or normalisation(in_chans)
    # timm rounds size / crop_pct down; adding 0.5 prevents 93 from becoming 92
    crop = data.size_px / (data.eval_resize_px + 0.5)
    interpolation = "bicubic" if augment.interpolation == "random" else augment.interpolation
    how = dict(interpolation=interpolation, crop_pct=crop, crop_mode=crop_mode, mean=mean, std=std)
    steps = create_transform(data.size_px, **how).transforms
    # The other crop modes never enlarge an image beyond the size.
    return Compose([crop_long_strip, *steps] if crop_mode in (None, "center") else steps)


class BatchAugment:
    """The last steps of training augmentation, on whole batches and on their device: colour jitter, normalisation, erasing.

    This takes work off the loader processes.
    """

    def __init__(self, augment: AugmentConfig, in_chans: int, device: torch.device) -> None:
        mean, std = normalisation(in_chans)
        self.mean, self.std = (torch.tensor(v, device=device).reshape(-1, 1, 1) * 255 for v in (mean, std))
        # Every policy but 3a changes colours itself.
        has_colours = augment.auto_augment is not None and not augment.auto_augment.startswith("3a")
        self.jitter = 0.0 if has_colours else augment.color_jitter
        self.erase_prob = augment.erase
        self.erase = RandomErasing(probability=1.0, mode="pixel", device="cpu")  # drawn from CPU generators, which are seeded

    def __call__(self, images: Tensor, seeds: Sequence[int]) -> Tensor:
        images = images.float()
        if self.jitter > 0:
            images = jitter_colors(images, self._factors(seeds, images.device))
        images = images.sub_(self.mean).div_(self.std)
        if self.erase_prob == 0:
            return images
        chosen = [i for i, seed in enumerate(seeds) if random.Random(mix_seeds(seed, 2)).random() < self.erase_prob]
        if images.device.type == "cpu":
            self._erase((images[i] for i in chosen), (seeds[i] for i in chosen))
        elif chosen:
            images = self._erase_on_gpu(images, chosen, seeds)
        return images

    def _erase(self, images: Iterable[Tensor], seeds: Iterable[int]) -> None:
        for image, seed in zip(images, seeds, strict=True):
            with seeded(mix_seeds(seed, 3)):
                self.erase(image)  # in place

    def _erase_on_gpu(self, images: Tensor, chosen: Sequence[int], seeds: Sequence[int]) -> Tensor:
        """The same noise for images on a GPU, copied in one transfer: one per rectangle would synchronize each time."""
        patches = torch.full((len(chosen), *images.shape[1:]), torch.nan, pin_memory=images.device.type == "cuda")
        self._erase(patches, (seeds[i] for i in chosen))
        noise, place = to_device(patches, images.device), to_device(torch.tensor(chosen), images.device)
        return images.index_copy(0, place, torch.where(noise.isnan(), images[place], noise))

    def _factors(self, seeds: Sequence[int], device: torch.device) -> Tensor:  # (3, B, 1, 1, 1)
        low, high = max(0.0, 1 - self.jitter), 1 + self.jitter
        drawn = [[generator.uniform(low, high) for _ in range(3)] for generator in _generators(seeds, 1)]
        return torch.tensor(drawn, device=device).T[..., None, None, None]


def _generators(seeds: Sequence[int], stream: int) -> Iterator[random.Random]:
    """A generator for each image; each kind of augmentation has its own stream, so that they are independent."""
    return (random.Random(mix_seeds(seed, stream)) for seed in seeds)


def jitter_colors(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply brightness, contrast and saturation by a factor for each image; values from 0 to 255, (B, C, H, W)."""
    brightness, contrast, saturation = factors
    images = (images * brightness).clamp_(0, 255)
    images.lerp_(_gray(images).mean((2, 3), keepdim=True), 1 - contrast).clamp_(0, 255)
    return images.lerp_(_gray(images), 1 - saturation).clamp_(0, 255)


def _gray(images: Tensor) -> Tensor:  # (B, C, H, W) -> (B, 1, H, W)
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    return (red * 0.299).add_(green, alpha=0.587).add_(blue, alpha=0.114)  # BT.601, as Pillow
