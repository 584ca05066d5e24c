"""Squares of photographs."""

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tailprop.data.photos import Photos, open_photos

__all__ = ["Photos", "crop_photo", "open_photos"]

Array = npt.NDArray[Any]


def crop_photo(photo: Image.Image, size_px: int, rng: np.random.Generator | None) -> Array:
    """A square of a photograph, uint8 (size_px, size_px, 3): the middle, or one of random place and scale, mirrored or not."""
    short = min(photo.size)
    side = short if rng is None else rng.uniform(0.6, 1.0) * short
    left, top = ((length - side) * (0.5 if rng is None else rng.uniform()) for length in photo.size)
    square = photo.resize((size_px, size_px), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    pixels = np.asarray(square)
    return pixels[:, ::-1] if rng is not None and rng.integers(2) else pixels
