"""Pairs of damaged and clean pictures: settings, random crops for training, whole pictures for tests.

Shapes: B batch, C = 1 gray or 3 colour, H, W; float32 with white at 1.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.images import list_pictures, size_of
from tailprop.data.loader import Examples
from tailprop.data.raster import Pixels, fit_channels, try_pixels
from tailprop.data.samplers import Key
from tailprop.tasks.restore.degrade import JPEG_BLOCK, add_noise, add_test_noise, compress, to_8_bits, to_unit
from tailprop.tasks.restore.metrics import SSIM_LEAST_PX
from tailprop.utils.validation import check_at_least, check_between

__all__ = ["Crops", "Pair", "PairBatch", "RestoreDataConfig", "WholePictures", "collate_pairs"]


@dataclass(frozen=True)
class RestoreDataConfig:
    """Clean pictures, and the damage done to them."""

    train: tuple[Path, ...] = ()
    """Folders of clean pictures for training, searched with all folders below."""
    test: Path | None = None
    """Folder of clean pictures the network is tested on."""
    damage: Literal["noise", "jpeg"] = "noise"
    """Gaussian noise, or JPEG compression."""
    sigma: float = 15.0
    """Standard deviation of the noise, white being 255."""
    quality: int = 40
    """Quality of the JPEG encoder, 1 to 100."""
    crop_px: int = 128
    """Side of the training crops."""
    cache: float = 1.0
    """Decoded training pictures that each loader process keeps, in GB."""
    on_broken: Literal["skip", "stop"] = "stop"
    """A picture that cannot be read: skip and count it, or stop."""
    workers: int = 2
    """Loader processes for each training process."""

    def check(self) -> None:
        check_at_least("data.crop_px", self.crop_px, 8)
        check_between("data.sigma", self.sigma, 0, 255)
        check_between("data.quality", self.quality, 1, 100)
        check_at_least("data.cache", self.cache, 0)
        check_at_least("data.workers", self.workers, 0)

    def test_pictures(self) -> list[Path]:
        if self.test is None:
            raise ValueError("no pictures to test on; give their folder with --data.test")
        return list_pictures([str(self.test)])

    def train_pictures(self) -> list[Path]:
        if not self.train:
            raise ValueError("no pictures to train on; give their folders with --data.train")
        return list_pictures([str(folder) for folder in self.train])


@dataclass(frozen=True)
class Pair:
    """A damaged picture and the clean one."""

    name: str
    damaged: Tensor  # (C, H, W)
    clean: Tensor  # (C, H, W)


@dataclass
class PairBatch:
    """Crops of one size, and what could not be read."""

    damaged: Tensor  # (B, C, H, W)
    clean: Tensor  # (B, C, H, W)
    broken: list[Broken] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.clean)

    def pin_memory(self) -> "PairBatch":  # called by the loader
        return PairBatch(self.damaged.pin_memory(), self.clean.pin_memory(), self.broken)


class Crops(Examples):
    """Random crops, flipped and turned, damaged on the fly; everything random comes from the key's seed.

    A broken picture comes as `Broken`, with a crop of the next good one in its place.
    """

    def __init__(self, paths: Sequence[Path], data: RestoreDataConfig, channels: int) -> None:
        self.paths, self.data, self.channels = paths, data, channels
        self.kept: dict[int, Pixels] = {}
        self.room = data.cache * 1e9  # bytes

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: Key) -> list[Pair | Broken]:
        found: list[Pair | Broken] = []
        for offset in range(min(len(self), 17)):
            index = (key.index + offset) % len(self)
            pixels = self._read(index)
            if not isinstance(pixels, Broken):
                found.append(self._pair(index, pixels, np.random.default_rng(key.seed)))
                break
            found.append(pixels)
        return found

    def _read(self, index: int) -> Pixels | Broken:
        if index in self.kept:
            return self.kept[index]
        pixels = try_pixels(self.paths[index])
        if isinstance(pixels, Broken):
            return pixels
        # Noise is learned from black to white. JPEG tests are in studio range and photographs are not: half of each.
        studio = self.data.damage == "jpeg" and index % 2 == 1
        pixels = np.ascontiguousarray(fit_channels(pixels, self.channels, studio))
        if pixels.nbytes <= self.room:
            self.room -= pixels.nbytes
            self.kept[index] = pixels
        return pixels

    def _pair(self, index: int, pixels: Pixels, rng: np.random.Generator) -> Pair:
        side = self.data.crop_px
        if self.data.damage == "noise":
            clean = to_unit(_turn(_crop(pixels, side, rng), rng))
            damaged = add_noise(clean, self.data.sigma, rng)
        else:  # the crop is cut from a larger one after compression: its corner may lie anywhere in a block
            block = to_8_bits(_turn(_crop(pixels, side + JPEG_BLOCK, rng), rng))
            both = np.concatenate([compress(block, self.data.quality), block], axis=2)
            damaged, clean = np.split(to_unit(_crop(both, side, rng)), 2, axis=2)
        return Pair(self.paths[index].name, _to_tensor(damaged), _to_tensor(clean))


class WholePictures(Examples):
    """Test pictures as SwinIR damages them, by their names below the folder they share."""

    def __init__(self, paths: Sequence[Path], data: RestoreDataConfig, channels: int) -> None:
        self.paths, self.data, self.channels = paths, data, channels
        folder = os.path.commonpath([path.parent for path in paths])
        self.names = [path.relative_to(folder).as_posix() for path in paths]

    def __len__(self) -> int:
        return len(self.paths)

    def find_broken(self) -> list[Broken]:
        """What can be seen without decoding: files that are no pictures, and pictures too small to be measured."""
        sizes = [(path, size_of(path)) for path in self.paths]
        found = [size if isinstance(size, Broken) else _too_small(path, *size) for path, size in sizes]
        return [item for item in found if item is not None]

    def __getitem__(self, key: Key) -> Pair | Broken:
        pixels = try_pixels(self.paths[key.index])
        if isinstance(pixels, Broken):
            return pixels
        if (small := _too_small(self.paths[key.index], pixels.shape[1], pixels.shape[0])) is not None:
            return small
        pixels = fit_channels(pixels, self.channels)
        clean = to_unit(to_8_bits(pixels))
        if self.data.damage == "noise":
            damaged = add_test_noise(clean, self.data.sigma)
        else:
            damaged = to_unit(compress(pixels, self.data.quality))
        return Pair(self.names[key.index], _to_tensor(damaged), _to_tensor(clean))


def _too_small(path: Path, width: int, height: int) -> Broken | None:
    least = SSIM_LEAST_PX
    if min(width, height) >= least:
        return None
    return Broken(str(path), f"SSIM needs at least {least}x{least} px, it has {width}x{height}")


def collate_pairs(examples: Sequence[list[Pair | Broken]]) -> PairBatch:
    found = [item for example in examples for item in example]
    pairs = [item for item in found if isinstance(item, Pair)]
    broken = [item for item in found if isinstance(item, Broken)]
    if not pairs:
        return PairBatch(torch.empty(0), torch.empty(0), broken)
    return PairBatch(torch.stack([p.damaged for p in pairs]), torch.stack([p.clean for p in pairs]), broken)


def _crop(pixels: Pixels, side: int, rng: np.random.Generator) -> Pixels:
    """A random square; pictures too small for it are mirrored at their lower and right edge."""
    h, w = pixels.shape[:2]
    if h < side or w < side:
        pixels = np.pad(pixels, ((0, max(0, side - h)), (0, max(0, side - w)), (0, 0)), mode="symmetric")
        h, w = pixels.shape[:2]
    top, left = rng.integers(h - side + 1), rng.integers(w - side + 1)
    return pixels[top : top + side, left : left + side]


def _turn(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """One of the eight symmetries of the square."""
    pixels = np.rot90(pixels, int(rng.integers(4)))
    return pixels[:, ::-1] if rng.integers(2) else pixels


def _to_tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(values, -1, 0)))
