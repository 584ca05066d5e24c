"""Degradations of clean images: Gaussian noise, and JPEG compression with Pillow's encoder.

Shapes: (H, W, C), C = 1 gray or 3 colour; clean images are uint8 or uint16, degraded ones float32 with white at 1.
"""

import io
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from tailprop.data.images import open_image
from tailprop.data.raster import Pixels, peak

__all__ = ["JPEG_BLOCK", "Unit", "add_noise", "add_test_noise", "compress", "to_8_bits", "to_unit"]

JPEG_BLOCK: Final = 8

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
