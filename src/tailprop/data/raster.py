"""Images as arrays with every bit they have: 8 or 16 for each value, gray or colour, with or without transparency.

Pillow cuts 16-bit colour down to 8 bits; there imagecodecs (PNG) and tifffile step in. A colour profile goes with the pixels.

Shapes: (H, W, C) with C = 1 gray, 2 gray and alpha, 3 RGB, 4 RGBA.
"""

import struct
import zlib
from pathlib import Path
from typing import Any, Final

import imagecodecs
import numpy as np
import numpy.typing as npt
import tifffile
from PIL import Image

from tailprop.data.broken import Broken
from tailprop.data.images import describe_error, exif_transpose
from tailprop.utils.files import write_atomically

__all__ = [
    "Pixels",
    "fit_channels",
    "full_luma",
    "image_pixels",
    "peak",
    "read_pixels",
    "read_profile",
    "studio_luma",
    "try_pixels",
    "write_pixels",
]

_BITS_PER_SAMPLE, _PHOTOMETRIC, _ORIENTATION = 258, 262, 274  # tags of TIFF

Pixels = npt.NDArray[Any]  # uint8 or uint16
LUMA: Final = (0.299, 0.587, 0.114)  # BT.601
STUDIO_LUMA: Final = (65.481, 128.553, 24.966)  # the same in studio range, 16 to 235 of 255; MATLAB's rgb2ycbcr


def try_pixels(path: Path) -> Pixels | Broken:
    """The image in a file, or why it cannot be read."""
    try:
        return read_pixels(path)
    except Exception as error:  # a decoder trips over corrupt files in many ways
        return Broken(str(path), describe_error(error))


def read_pixels(path: Path) -> Pixels:
    """The image in a file, upright; of several frames the first, of a palette its colours."""
    with Image.open(path) as file:
        if _is_deep_colour(file):
            return _turn_upright(_read_deep_colour(path, str(file.format)), file.getexif().get(_ORIENTATION, 1))
        file.load()
        return image_pixels(file)


def image_pixels(file: Image.Image) -> Pixels:
    """A decoded image as an array, upright, of a palette its colours; Pillow has at most 8 bits of colour, and 16 of gray."""
    black_is_high = file.mode.startswith("I;16") and _tags(file).get(_PHOTOMETRIC) == 0  # Pillow turns 8 bits only
    image = exif_transpose(file)
    if image.mode == "F":
        raise ValueError("its pixels are floats, and nothing says which of them is white; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels have 32 bits, and nothing says which of them is white; save it with 8 or 16 bits")
        return (65535 - values if black_is_high else values).astype(np.uint16)[..., None]
    values = np.array(image.convert(_plain_mode(image)))
    return values[..., None] if values.ndim == 2 else values


def _plain_mode(image: Image.Image) -> str:
    see_through = "transparency" in image.info  # one colour of a PNG or a GIF
    if image.mode in ("1", "L", "LA", "La"):
        return "LA" if see_through or image.mode in ("LA", "La") else "L"
    return "RGBA" if see_through or image.mode in ("RGBA", "RGBa", "PA") else "RGB"


def _tags(file: Image.Image) -> dict[int, Any]:
    return dict(getattr(file, "tag_v2", {}))


def _is_deep_colour(file: Image.Image) -> bool:
    """Whether Pillow is about to drop half of the bits: it knows them by a raw mode such as RGB;16B, or by a tag of TIFF."""
    raw_modes = [str(tile[3]) for tile in getattr(file, "tile", ())]
    bits = _tags(file).get(_BITS_PER_SAMPLE, ())
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


def _turn_upright(pixels: Pixels, orientation: int) -> Pixels:
    """As the camera was held: 1 upright, 2 to 8 mirrored, turned or both, as EXIF numbers them."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def read_profile(path: Path) -> bytes | None:
    """The colour profile of an image, if its pixels are read in the colours it speaks of: CMYK becomes RGB, and has none."""
    with Image.open(path) as file:
        return file.info.get("icc_profile") if file.mode not in ("CMYK", "YCbCr", "LAB", "HSV") else None


def write_pixels(path: Path, pixels: Pixels, profile: bytes | None = None) -> None:
    """Save an image as PNG, with the bits it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = bytes(imagecodecs.png_encode(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)))
    write_atomically(path, lambda part: part.write_bytes(_with_profile(encoded, profile)))


def _with_profile(png: bytes, profile: bytes | None) -> bytes:
    """A PNG with a colour profile behind its header: 33 bytes with the signature. The encoder has no way to say it."""
    if profile is None:
        return png
    chunk = b"iCCP" + b"profile\0\0" + zlib.compress(profile)
    return png[:33] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + png[33:]


def peak(pixels: Pixels) -> int:
    """The value of white."""
    return int(np.iinfo(pixels.dtype).max)


def studio_luma(pixels: Pixels) -> Pixels:
    """The luma of RGB, (H, W, 3) -> (H, W, 1), in the images' own bits: what SwinIR's JPEG tests take for gray."""
    top = peak(pixels)
    luma = pixels.astype(np.float64) / top @ np.array(STUDIO_LUMA) + 16
    return np.round(luma * (top / 255)).astype(pixels.dtype)[..., None]


def full_luma(pixels: Pixels) -> Pixels:
    """The same from black to white, as decoders make gray."""
    return np.round(pixels.astype(np.float64) @ np.array(LUMA)).astype(pixels.dtype)[..., None]


def fit_channels(pixels: Pixels, channels: int, studio: bool = True) -> Pixels:
    """Without transparency, and gray or colour as asked: colour becomes its luma, gray three equal channels."""
    colour = pixels[..., : 1 if pixels.shape[2] <= 2 else 3]
    if colour.shape[2] == channels:
        return colour
    if channels == 1:
        return studio_luma(colour) if studio else full_luma(colour)
    return np.repeat(colour, 3, axis=2)
