"""Pairs of degraded and clean images: settings, random crops for training, whole images for evaluation.

Shapes: B batch, C = 1 gray or 3 colour, H, W; float32 with white at 1.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.images import image_size
from tailprop.data.loader import KeyedDataset, split_broken
from tailprop.data.raster import Pixels, fit_channels, try_pixels
from tailprop.data.samplers import SampleKey
from tailprop.tasks.restore.config import RestoreDataConfig
from tailprop.tasks.restore.degrade import JPEG_BLOCK, Unit, add_noise, add_test_noise, compress, to_8_bits, to_unit
from tailprop.tasks.restore.metrics import SSIM_LEAST_PX

__all__ = ["CropDataset", "Pair", "PairBatch", "WholeImageDataset", "collate_pairs", "degrade"]


@dataclass(frozen=True)
class Pair:
    """A degraded image and the clean one."""

    name: str
    degraded: Tensor  # (C, H, W)
    clean: Tensor  # (C, H, W)


@dataclass
class PairBatch:
    """Crops of one size, and the images that could not be read."""

    degraded: Tensor  # (B, C, H, W)
    clean: Tensor  # (B, C, H, W)
    broken: list[Broken] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.clean)

    def pin_memory(self) -> "PairBatch":  # called by the loader
        return PairBatch(self.degraded.pin_memory(), self.clean.pin_memory(), self.broken)


class CropDataset(KeyedDataset):
    """Random crops, flipped, rotated and degraded on the fly; the key's seed determines all random choices.

    A corrupt image yields `Broken` together with a crop of another image.
    """

    replace_broken = True

    def __init__(self, paths: Sequence[Path], data: RestoreDataConfig, channels: int) -> None:
        self.paths, self.data, self.channels = paths, data, channels
        self.kept: dict[int, Pixels] = {}
        self.cache_bytes_left = data.cache_gb * 1e9  # bytes

    def __len__(self) -> int:
        return len(self.paths)

    def read_example(self, index: int, key: SampleKey) -> Pair | Broken:
        pixels = self._read(index)
        return pixels if isinstance(pixels, Broken) else self._pair(index, pixels, np.random.default_rng(key.seed))

    def _read(self, index: int) -> Pixels | Broken:
        if index in self.kept:
            return self.kept[index]
        pixels = try_pixels(self.paths[index])
        if isinstance(pixels, Broken):
            return pixels
        # Noise is trained on the full range. JPEG test images have studio range, photographs do not: train on half of each.
        studio = self.data.degradation == "jpeg" and index % 2 == 1
        pixels = np.ascontiguousarray(fit_channels(pixels, self.channels, studio))
        if pixels.nbytes <= self.cache_bytes_left:
            self.cache_bytes_left -= pixels.nbytes
            self.kept[index] = pixels
        return pixels

    def _pair(self, index: int, pixels: Pixels, rng: np.random.Generator) -> Pair:
        side = self.data.crop_px
        if self.data.degradation == "noise":
            clean = to_unit(_random_symmetry(_crop(pixels, side, rng), rng))
            degraded = add_noise(clean, self.data.sigma, rng)
        else:  # a larger crop is compressed and cropped again, so that blocks start at any offset
            block = to_8_bits(_random_symmetry(_crop(pixels, side + JPEG_BLOCK, rng), rng))
            both = np.concatenate([compress(block, self.data.quality), block], axis=2)
            degraded, clean = np.split(to_unit(_crop(both, side, rng)), 2, axis=2)
        return Pair(self.paths[index].name, _to_tensor(degraded), _to_tensor(clean))


class WholeImageDataset(KeyedDataset):
    """Test images, degraded as in SwinIR and named by their path below their common folder."""

    def __init__(self, paths: Sequence[Path], data: RestoreDataConfig, channels: int) -> None:
        self.paths, self.data, self.channels = paths, data, channels
        folder = os.path.commonpath([path.parent for path in paths])
        self.names = [path.relative_to(folder).as_posix() for path in paths]

    def __len__(self) -> int:
        return len(self.paths)

    def find_broken(self) -> list[Broken]:
        """Problems that are visible without decoding: files that are not images, and images too small for SSIM."""
        sizes = [(path, image_size(path)) for path in self.paths]
        found = [size if isinstance(size, Broken) else _too_small(path, *size) for path, size in sizes]
        return [item for item in found if item is not None]

    def read_example(self, index: int, key: SampleKey) -> Pair | Broken:  # noqa: ARG002 - test images have no random choices
        pixels = try_pixels(self.paths[index])
        if isinstance(pixels, Broken):
            return pixels
        if (small := _too_small(self.paths[index], pixels.shape[1], pixels.shape[0])) is not None:
            return small
        pixels = fit_channels(pixels, self.channels)
        return Pair(self.names[index], _to_tensor(degrade(pixels, self.data)), _to_tensor(to_unit(to_8_bits(pixels))))


def degrade(pixels: Pixels, data: RestoreDataConfig) -> Unit:
    """A test image with the degradation of a run, (H, W, C)."""
    if data.degradation == "noise":
        return add_test_noise(to_unit(to_8_bits(pixels)), data.sigma)
    return to_unit(compress(pixels, data.quality))


def _too_small(path: Path, width: int, height: int) -> Broken | None:
    least = SSIM_LEAST_PX
    if min(width, height) >= least:
        return None
    return Broken(str(path), f"SSIM needs at least {least}x{least} px, the image has {width}x{height}")


def collate_pairs(examples: Sequence[list[Pair | Broken]]) -> PairBatch:
    pairs, broken = split_broken(examples)
    if not pairs:
        return PairBatch(torch.empty(0), torch.empty(0), broken)
    return PairBatch(torch.stack([p.degraded for p in pairs]), torch.stack([p.clean for p in pairs]), broken)


def _crop(pixels: Pixels, side: int, rng: np.random.Generator) -> Pixels:
    """A random square crop; images that are too small are padded by mirroring at the bottom and on the right."""
    h, w = pixels.shape[:2]
    if h < side or w < side:
        pixels = np.pad(pixels, ((0, max(0, side - h)), (0, max(0, side - w)), (0, 0)), mode="symmetric")
        h, w = pixels.shape[:2]
    top, left = rng.integers(h - side + 1), rng.integers(w - side + 1)
    return pixels[top : top + side, left : left + side]


def _random_symmetry(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Apply one of the eight symmetries of the square, chosen at random."""
    pixels = np.rot90(pixels, int(rng.integers(4)))
    return pixels[:, ::-1] if rng.integers(2) else pixels


def _to_tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(values, -1, 0)))
