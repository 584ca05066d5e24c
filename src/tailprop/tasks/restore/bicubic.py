"""Bicubic resizing as MATLAB's imresize does it, which super-resolution papers use for their test images.

Keys' cubic convolution with a = -0.5. For a smaller image the kernel is stretched by the scale (antialiasing), and borders are
extended by mirror images. Inside an image this is what Pillow computes; at a border, Pillow shortens the kernel instead.

Shapes: (H, W, C); m output positions, n input positions.
"""

from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tailprop.data.raster import Pixels, peak

__all__ = ["crop_to_multiple", "downscale", "enlarge", "resize", "resize_matrix"]

_REACH: Final = 2  # of the kernel to each side, in pixels of the coarser image

Array = npt.NDArray[np.float64]


def downscale(pixels: Pixels, scale: int) -> Pixels:
    """Smaller by an integer, rounded to the bit depth; the sides must be multiples of it."""
    h, w = pixels.shape[:2]
    assert h % scale == w % scale == 0
    return _rounded(resize(pixels, h // scale, w // scale), pixels)


def enlarge(pixels: Pixels, scale: int) -> Pixels:
    """Larger by an integer, rounded to the bit depth."""
    return _rounded(resize(pixels, scale * pixels.shape[0], scale * pixels.shape[1]), pixels)


def crop_to_multiple(pixels: Pixels, scale: int) -> Pixels:
    """Drop the last rows and columns until both sides are multiples."""
    h, w = pixels.shape[:2]
    return pixels[: h - h % scale, : w - w % scale]


def resize(image: npt.NDArray[Any], height: int, width: int) -> Array:
    """(H, W, C) -> (height, width, C), neither rounded nor clipped."""
    rows, columns = resize_matrix(image.shape[0], height), resize_matrix(image.shape[1], width)
    return np.einsum("ih,hwc,jw->ijc", rows, image.astype(np.float64), columns, optimize=True)


def _rounded(values: Array, like: Pixels) -> Pixels:
    return np.clip(np.floor(values + 0.5), 0, peak(like)).astype(like.dtype)


@lru_cache(maxsize=16)
def resize_matrix(n: int, m: int) -> Array:
    """The weights of the n positions of a line for each of m, (m, n); every row sums to 1."""
    scale = m / n
    stretch = max(1.0, 1 / scale)  # only of a smaller image
    centers = (np.arange(m) + 0.5) / scale - 0.5  # in input positions
    count = int(np.ceil(2 * _REACH * stretch)) + 2
    first = np.floor(centers - _REACH * stretch).astype(np.int64)
    taps = first[:, None] + np.arange(count)  # (m, count)
    weights = _kernel((centers[:, None] - taps) / stretch)
    weights /= weights.sum(1, keepdims=True)
    mirrored = np.concatenate([np.arange(n), np.arange(n)[::-1]])[taps % (2 * n)]  # 0 1 2 | 2 1 0 | 0 1 2
    matrix = np.zeros((m, n))
    np.add.at(matrix, (np.arange(m)[:, None], mirrored), weights)
    matrix.setflags(write=False)
    return matrix


def _kernel(x: Array) -> Array:
    """Keys 1981, a = -0.5: (3|x|^3 - 5|x|^2 + 2) / 2 up to 1, (-|x|^3 + 5|x|^2 - 8|x| + 4) / 2 up to 2."""
    x = np.abs(x)
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))
