"""Pictures as arrays with every bit they have: 8 or 16 for each value, gray or colour, with or without transparency.

Pillow cuts 16-bit colour down to 8 bits; there imagecodecs (PNG) and tifffile step in.

Shapes: (H, W, C) with C = 1 gray, 2 gray and alpha, 3 RGB, 4 RGBA.
"""

from pathlib import Path
from typing import Any, Final

import imagecodecs
import numpy as np
import numpy.typing as npt
import tifffile
from PIL import Image

from tailprop.checkpoint import write_atomically
from tailprop.data.loading import Broken
from tailprop.data.pictures import reason_of, upright

__all__ = ["Pixels", "fit_channels", "peak", "read_pixels", "studio_luma", "try_pixels", "write_pixels"]

_BITS_PER_SAMPLE: Final = 258  # tag of TIFF

Pixels = npt.NDArray[Any]  # uint8 or uint16
LUMA: Final = (65.481, 128.553, 24.966)  # BT.601 in studio range, 16 to 235 of 255; MATLAB's rgb2ycbcr


def try_pixels(path: Path) -> Pixels | Broken:
    """The picture in a file, or why it cannot be read."""
    try:
        return read_pixels(path)
    except Exception as error:  # a decoder trips over damage in many ways
        return Broken(str(path), reason_of(error))


def read_pixels(path: Path) -> Pixels:
    """The picture in a file, upright; of several frames the first, of a palette its colours."""
    with Image.open(path) as file:
        if _is_deep_colour(file):
            return _read_deep_colour(path, str(file.format))
        file.load()
        picture = upright(file)
    if picture.mode == "F":
        raise ValueError("its pixels are floats, and nothing says which of them is white; save it with 8 or 16 bits")
    if picture.mode.startswith("I"):
        values = np.asarray(picture).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels have 32 bits, and nothing says which of them is white; save it with 8 or 16 bits")
        return values.astype(np.uint16)[..., None]
    values = np.array(picture.convert(_plain_mode(picture)))
    return values[..., None] if values.ndim == 2 else values


def _plain_mode(picture: Image.Image) -> str:
    if picture.mode in ("1", "L"):
        return "L"
    if picture.mode in ("LA", "La"):
        return "LA"
    has_alpha = picture.mode in ("RGBA", "RGBa", "PA") or (picture.mode == "P" and "transparency" in picture.info)
    return "RGBA" if has_alpha else "RGB"


def _is_deep_colour(file: Image.Image) -> bool:
    """Whether Pillow is about to drop half of the bits: it knows them by a raw mode such as RGB;16B, or by a tag of TIFF."""
    raw_modes = [str(tile[3]) for tile in getattr(file, "tile", ())]
    bits = dict(getattr(file, "tag_v2", {})).get(_BITS_PER_SAMPLE, ())
    return file.mode in ("RGB", "RGBA", "LA") and (any(";16" in mode for mode in raw_modes) or 16 in bits)


def _read_deep_colour(path: Path, kind: str) -> Pixels:
    if kind == "PNG":
        return np.asarray(imagecodecs.png_decode(path.read_bytes()))
    if kind == "TIFF":
        with tifffile.TiffFile(path) as file:
            page = file.pages[0]
            values = np.asarray(page.asarray())
            return np.moveaxis(values, 0, -1) if page.axes.startswith("S") else values
    raise ValueError(f"16-bit colour can be read from PNG and TIFF, not from {kind}; convert it")


def write_pixels(path: Path, pixels: Pixels) -> None:
    """Save a picture as PNG, with the bits it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    write_atomically(path, lambda part: part.write_bytes(imagecodecs.png_encode(flat)))


def peak(pixels: Pixels) -> int:
    """The value of white."""
    return int(np.iinfo(pixels.dtype).max)


def studio_luma(pixels: Pixels) -> Pixels:
    """The luma of RGB, (H, W, 3) -> (H, W, 1), in the pictures' own bits: what SwinIR's tests take for gray."""
    top = peak(pixels)
    luma = pixels.astype(np.float64) / top @ np.array(LUMA) + 16
    return np.round(luma * (top / 255)).astype(pixels.dtype)[..., None]


def fit_channels(pixels: Pixels, channels: int) -> Pixels:
    """Without transparency, and gray or colour as asked: colour becomes its luma, gray three equal channels."""
    colour = pixels[..., : 1 if pixels.shape[2] <= 2 else 3]
    if colour.shape[2] == channels:
        return colour
    return studio_luma(colour) if channels == 1 else np.repeat(colour, 3, axis=2)
