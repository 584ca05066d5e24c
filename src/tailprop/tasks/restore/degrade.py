"""Degradations of clean images: Gaussian noise, JPEG compression with Pillow's encoder, bicubic downscaling, or given images.

Shapes: (H, W, C), C = 1 gray or 3 colour; clean images are uint8 or uint16, degraded ones float32 with white at 1.
"""

import io
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from tailprop.data.images import open_image
from tailprop.data.raster import Pixels, peak
from tailprop.tasks.restore.bicubic import crop_to_multiple, downscale, enlarge

__all__ = [
    "Degradation",
    "Unit",
    "add_noise",
    "add_test_noise",
    "compress",
    "expand",
    "random_crops",
    "to_8_bits",
    "to_unit",
    "whole_images",
]

_JPEG_BLOCK: Final = 8
_CONTEXT: Final = 3  # pixels of the small image around a crop, beyond which the kernel of the downscaling does not reach

Unit = npt.NDArray[np.float32]


def to_unit(pixels: Pixels) -> Unit:
    """Scale to float32 with white at 1."""
    return pixels.astype(np.float32) / np.float32(peak(pixels))


def to_8_bits(pixels: Pixels) -> Pixels:
    """Round to 8 bits; 65535 = 257 * 255."""
    return pixels if pixels.dtype == np.uint8 else ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)


def add_noise(clean: Unit, sigma: float, rng: np.random.Generator) -> Unit:
    """Add independent Gaussian noise of standard deviation sigma / 255, not clipped, as in a sensor with a black level."""
    return clean + np.float32(sigma / 255) * rng.standard_normal(clean.shape, dtype=np.float32)


def add_test_noise(clean: Unit, sigma: float) -> Unit:
    """Add the noise of SwinIR's test: numpy's legacy generator with seed 0 for every image, in OpenCV's order B, G, R."""
    shape: Any = clean.shape if clean.shape[2] > 1 else clean.shape[:2]
    noise = np.random.RandomState(0).normal(0, sigma / 255, shape)
    return (clean + noise.reshape(clean.shape)[..., ::-1]).astype(np.float32)


def compress(pixels: Pixels, quality: int) -> Pixels:
    """Encode as an 8-bit JPEG with Pillow, and decode it again."""
    pixels = to_8_bits(pixels)
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, "JPEG", quality=quality)
    decoded = np.array(open_image(buffer))
    return decoded[..., None] if decoded.ndim == 2 else decoded


@dataclass(frozen=True)
class Degradation:
    """How clean images become degraded; ranges are drawn from uniformly, and are a single value in evaluation."""

    kind: Literal["noise", "jpeg", "downscale", "pairs"]
    sigma: tuple[float, float]  # where white is 255
    quality: tuple[int, int]
    scale: int  # of the clean image to the degraded one


def whole_images(clean: Pixels, given: Pixels | None, how: Degradation) -> tuple[Unit, Pixels, Pixels | None]:
    """A whole test image degraded, clean, and for super-resolution the degraded one resized bicubically."""
    if how.kind == "noise":
        return add_test_noise(to_unit(to_8_bits(clean)), how.sigma[0]), clean, None
    if how.kind == "jpeg":
        return to_unit(compress(clean, how.quality[0])), clean, None
    clean = crop_to_multiple(clean, how.scale)
    small = downscale(to_8_bits(clean), how.scale) if given is None else given
    return to_unit(small), clean, enlarge(to_8_bits(small), how.scale) if how.scale > 1 else None


def random_crops(
    clean: Pixels, given: Pixels | None, side: int, how: Degradation, rng: np.random.Generator
) -> tuple[Unit, Unit]:
    """A random crop of an image, turned and flipped at random: degraded, and clean with this side."""
    if how.kind == "noise":
        unit = to_unit(_symmetry(_crop(clean, side, rng), *_draw(rng)))
        return add_noise(unit, _uniform(how.sigma, rng), rng), unit
    if how.kind == "jpeg":  # a larger crop is compressed and cropped again, so that blocks start at any offset
        block = to_8_bits(_symmetry(_crop(clean, side + _JPEG_BLOCK, rng), *_draw(rng)))
        both = np.concatenate([compress(block, _whole(how.quality, rng)), block], axis=2)
        degraded, cut = np.split(to_unit(_crop(both, side, rng)), 2, axis=2)
        return degraded, cut
    crops = _small_and_large(clean, given, side, how.scale, rng)
    turns, mirrored = _draw(rng)
    small, large = (to_unit(_symmetry(crop, turns, mirrored)) for crop in crops)
    return small, large


def _small_and_large(
    clean: Pixels, given: Pixels | None, side: int, scale: int, rng: np.random.Generator
) -> tuple[Pixels, Pixels]:
    """The same random part of the degraded image, smaller by the scale, and of the clean one.

    Downscaling a crop with its surroundings gives what downscaling the whole image and cropping it does.
    """
    clean = _at_least(crop_to_multiple(clean, scale), side)
    h, w = (length // scale for length in clean.shape[:2])
    top, left = (int(rng.integers(length - side // scale + 1)) for length in (h, w))  # in pixels of the small image
    rows, columns = slice(top, top + side // scale), slice(left, left + side // scale)
    if given is not None:
        small = _at_least(given, side // scale)[rows, columns]
    else:
        around = tuple(slice(scale * max(0, p.start - _CONTEXT), scale * (p.stop + _CONTEXT)) for p in (rows, columns))
        above, before = min(top, _CONTEXT), min(left, _CONTEXT)
        small = downscale(to_8_bits(clean[around]), scale)
        small = small[above : above + side // scale, before : before + side // scale]
    return small, clean[scale * top : scale * top + side, scale * left : scale * left + side]


def expand(values: Any, channels: int) -> Any:
    """A gray image as equal channels of a colour image; others as they are."""
    return np.repeat(values, channels, axis=2) if values.shape[2] < channels else values


def _uniform(limits: tuple[float, float], rng: np.random.Generator) -> float:
    return limits[0] if limits[0] == limits[1] else rng.uniform(*limits)


def _whole(limits: tuple[int, int], rng: np.random.Generator) -> int:
    return limits[0] if limits[0] == limits[1] else int(rng.integers(limits[0], limits[1] + 1))


def _at_least(pixels: Pixels, side: int) -> Pixels:
    """Images that are too small are padded by mirroring at the bottom and on the right."""
    h, w = pixels.shape[:2]
    if h >= side and w >= side:
        return pixels
    return np.pad(pixels, ((0, max(0, side - h)), (0, max(0, side - w)), (0, 0)), mode="symmetric")


def _crop(pixels: Pixels, side: int, rng: np.random.Generator) -> Pixels:
    """A random square crop."""
    pixels = _at_least(pixels, side)
    h, w = pixels.shape[:2]
    top, left = rng.integers(h - side + 1), rng.integers(w - side + 1)
    return pixels[top : top + side, left : left + side]


def _draw(rng: np.random.Generator) -> tuple[int, bool]:
    """Quarter turns, and whether to mirror: one of the eight symmetries of the square."""
    return int(rng.integers(4)), bool(rng.integers(2))


def _symmetry(pixels: Pixels, turns: int, mirrored: bool) -> Pixels:
    pixels = np.rot90(pixels, turns)
    return pixels[:, ::-1] if mirrored else pixels
