"""Pairs of degraded and clean images: settings, random crops for training, whole images for evaluation.

Shapes: B batch, C = 1 gray or 3 colour, H, W; float32 with white at 1. For super-resolution the degraded image is smaller.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.images import upright_size
from tailprop.data.loader import KeyedDataset, split_broken
from tailprop.data.raster import Pixels, fit_channels, full_luma, try_pixels
from tailprop.data.samplers import SampleKey
from tailprop.tasks.restore.config import RestoreDataConfig
from tailprop.tasks.restore.degrade import Unit, expand, random_crops, to_8_bits, to_unit, whole_images
from tailprop.tasks.restore.metrics import SSIM_LEAST_PX

__all__ = ["CropDataset", "Pair", "PairBatch", "WholeImageDataset", "collate_pairs", "degrade"]


@dataclass(frozen=True)
class Pair:
    """A degraded image and the clean one."""

    name: str
    degraded: Tensor  # (C, H, W), or smaller by the scale
    clean: Tensor  # (C, H, W)
    enlarged: Tensor | None = None  # (C, H, W): for super-resolution the degraded image, resized bicubically


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
        self.paths, self.data, self.channels, self.how = paths, data, channels, data.how
        self.partners = data.train_partners(paths)
        self.kept: dict[Path, Pixels] = {}
        self.cache_bytes_left = data.cache_gb * 1e9  # bytes

    def __len__(self) -> int:
        return len(self.paths)

    def read_example(self, index: int, key: SampleKey) -> Pair | Broken:
        path = self.paths[index]
        # Noise is trained on the full range. JPEG test images have studio range, photographs do not: train on half of each.
        studio = self.data.degradation == "jpeg" and index % 2 == 1
        clean = self._read(path, studio)
        given = self._read(self.partners[path], studio) if path in self.partners else None
        if isinstance(clean, Broken):
            return clean
        if isinstance(given, Broken):
            return given
        if given is not None and (wrong := _wrong_size(self.partners[path], _size(given), _size(clean), self.data.scale)):
            return wrong
        return self._pair(path, clean, given, np.random.default_rng(key.seed))

    def _read(self, path: Path, studio: bool) -> Pixels | Broken:
        if path in self.kept:
            return self.kept[path]
        pixels = try_pixels(path)
        if isinstance(pixels, Broken):
            return pixels
        pixels = np.ascontiguousarray(fit_channels(pixels, self._channels_of(pixels), studio))
        if pixels.nbytes <= self.cache_bytes_left:
            self.cache_bytes_left -= pixels.nbytes
            self.kept[path] = pixels
        return pixels

    def _channels_of(self, pixels: Pixels) -> int:
        """Those of the network. With `gray_share`, gray images stay gray: their noise must not differ between channels."""
        return 1 if self.data.gray_share and pixels.shape[2] <= 2 else self.channels

    def _pair(self, path: Path, clean: Pixels, given: Pixels | None, rng: np.random.Generator) -> Pair:
        if self.data.gray_share and rng.random() < self.data.gray_share and clean.shape[2] == 3:
            clean, given = full_luma(clean), given if given is None else full_luma(given)
        degraded, clean_crop = random_crops(clean, given, self.data.crop_px, self.how, rng)
        return Pair(path.name, _to_tensor(expand(degraded, self.channels)), _to_tensor(expand(clean_crop, self.channels)))


class WholeImageDataset(KeyedDataset):
    """Test images, degraded as in SwinIR and named by their path below their common folder.

    A gray image stays gray, also for a colour network: its noise must not differ between channels that are equal.
    """

    def __init__(self, paths: Sequence[Path], data: RestoreDataConfig, channels: int) -> None:
        self.paths, self.data, self.channels = paths, data, channels
        self.partners = data.test_partners(paths)
        folder = os.path.commonpath([path.parent for path in paths])
        self.names = [path.relative_to(folder).as_posix() for path in paths]

    def __len__(self) -> int:
        return len(self.paths)

    def find_broken(self) -> list[Broken]:
        """Problems that are visible without decoding: files that are not images, images too small for SSIM, unequal pairs."""
        found = [self._header_error(path) for path in self.paths]
        return [item for item in found if item is not None]

    def _header_error(self, path: Path) -> Broken | None:
        size = upright_size(path)
        if isinstance(size, Broken):
            return size
        if (small := self._too_small(path, *size)) is not None or path not in self.partners:
            return small
        given = upright_size(self.partners[path])
        return given if isinstance(given, Broken) else _wrong_size(self.partners[path], given, size, self.data.scale)

    def read_example(self, index: int, key: SampleKey) -> Pair | Broken:  # noqa: ARG002 - test images have no random choices
        path = self.paths[index]
        clean, given = try_pixels(path), None if path not in self.partners else try_pixels(self.partners[path])
        if isinstance(clean, Broken):
            return clean
        if isinstance(given, Broken):
            return given
        if (small := self._too_small(path, clean.shape[1], clean.shape[0])) is not None:
            return small
        if given is not None and (wrong := _wrong_size(self.partners[path], _size(given), _size(clean), self.data.scale)):
            return wrong
        channels = min(self.channels, 1 if clean.shape[2] <= 2 else 3)
        clean, given = fit_channels(clean, channels), given if given is None else fit_channels(given, channels)
        degraded, clean, enlarged = whole_images(clean, given, self.data.how_tested)
        larger = None if enlarged is None else _to_tensor(to_unit(enlarged))
        return Pair(self.names[index], _to_tensor(degraded), _to_tensor(to_unit(to_8_bits(clean))), larger)

    def _too_small(self, path: Path, width: int, height: int) -> Broken | None:
        scale = self.data.scale
        least = SSIM_LEAST_PX + 2 * self.data.protocol.border_px
        if min(width - width % scale, height - height % scale) >= least:
            return None
        return Broken(str(path), f"SSIM needs at least {least}x{least} px, the image has {width}x{height}")


def degrade(pixels: Pixels, data: RestoreDataConfig) -> Unit:
    """A test image with the degradation of a run, (H, W, C), smaller for super-resolution."""
    return whole_images(pixels, None, data.how_tested)[0]


def _size(pixels: Pixels) -> tuple[int, int]:
    """Width and height."""
    return pixels.shape[1], pixels.shape[0]


def _wrong_size(path: Path, degraded: tuple[int, int], clean: tuple[int, int], scale: int) -> Broken | None:
    (w, h), (clean_w, clean_h) = degraded, clean
    if (w, h) == (clean_w // scale, clean_h // scale):
        return None
    wanted = "the same size" if scale == 1 else f"that size divided by data.scale {scale}"
    return Broken(str(path), f"it is {w}x{h}, but the clean image is {clean_w}x{clean_h}; pairs need {wanted}")


def collate_pairs(examples: Sequence[list[Pair | Broken]]) -> PairBatch:
    pairs, broken = split_broken(examples)
    if not pairs:
        return PairBatch(torch.empty(0), torch.empty(0), broken)
    return PairBatch(torch.stack([p.degraded for p in pairs]), torch.stack([p.clean for p in pairs]), broken)


def _to_tensor(values: Pixels) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(values, -1, 0)))
