"""Images as arrays at full bit depth: 8 or 16 bits per value, gray or colour, with or without transparency.

Pillow reduces 16-bit colour to 8 bits, so imagecodecs (PNG) and tifffile read it. The colour profile is kept.

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
from tailprop.data.images import describe_error, exif_transpose, open_image
from tailprop.utils.files import make_folder, write_atomically
from tailprop.utils.parsing import read_bytes

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
    except Exception as error:  # decoders raise many kinds of errors on corrupt files
        return Broken(str(path), describe_error(error))


def read_pixels(path: Path) -> Pixels:
    """The first frame of an image file, EXIF-transposed; a palette image in its colours."""
    with open_image(path) as file:
        if _is_deep_colour(file):
            return _transpose(_read_deep_colour(path, str(file.format)), file.getexif().get(_ORIENTATION, 1))
        file.load()
        return image_pixels(file)


def image_pixels(file: Image.Image) -> Pixels:
    """A decoded image as an array, EXIF-transposed, palettes expanded; Pillow has at most 8 bits of colour, and 16 of gray."""
    black_is_high = file.mode.startswith("I;16") and _tags(file).get(_PHOTOMETRIC) == 0  # Pillow inverts 8 bits only
    image = exif_transpose(file)
    if image.mode == "F":
        raise ValueError("its pixels are floats with an unknown white level; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels have 32 bits with an unknown white level; save it with 8 or 16 bits")
        return (65535 - values if black_is_high else values).astype(np.uint16)[..., None]
    values = np.array(image.convert(_plain_mode(image)))
    return values[..., None] if values.ndim == 2 else values


def _plain_mode(image: Image.Image) -> str:
    is_transparent = "transparency" in image.info  # one colour of a PNG or a GIF
    if image.mode in ("1", "L", "LA", "La"):
        return "LA" if is_transparent or image.mode in ("LA", "La") else "L"
    return "RGBA" if is_transparent or image.mode in ("RGBA", "RGBa", "PA") else "RGB"


def _tags(file: Image.Image) -> dict[int, Any]:
    return dict(getattr(file, "tag_v2", {}))


def _is_deep_colour(file: Image.Image) -> bool:
    """Whether Pillow would drop half of the bits, by its raw mode such as RGB;16B or a TIFF tag."""
    raw_modes = [str(tile[3]) for tile in getattr(file, "tile", ())]
    bits = _tags(file).get(_BITS_PER_SAMPLE, ())
    return file.mode in ("RGB", "RGBA", "LA") and (any(";16" in mode for mode in raw_modes) or 16 in bits)


def _read_deep_colour(path: Path, kind: str) -> Pixels:
    if kind == "PNG":
        return np.asarray(imagecodecs.png_decode(read_bytes(path)))
    if kind == "TIFF":
        with tifffile.TiffFile(path) as file:
            page = file.pages[0]
            values = np.asarray(page.asarray())
            return np.moveaxis(values, 0, -1) if page.axes.startswith("S") else values
    raise ValueError(f"16-bit colour is supported in PNG and TIFF, not in {kind}; convert it")


def _transpose(pixels: Pixels, orientation: int) -> Pixels:
    """Apply an EXIF orientation: 1 is upright, 2 to 8 are mirrored, rotated or both."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def read_profile(path: Path) -> bytes | None:
    """The colour profile of an image if it applies to the pixels as read; None for CMYK, which is converted to RGB."""
    with open_image(path) as file:
        return file.info.get("icc_profile") if file.mode not in ("CMYK", "YCbCr", "LAB", "HSV") else None


def write_pixels(path: Path, pixels: Pixels, profile: bytes | None = None) -> None:
    """Save an image as PNG at its bit depth."""
    make_folder(path.parent)
    encoded = bytes(imagecodecs.png_encode(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)))
    write_atomically(path, lambda part: part.write_bytes(_with_profile(encoded, profile)))


def _with_profile(png: bytes, profile: bytes | None) -> bytes:
    """A PNG with a colour profile inserted after its 33-byte signature and header; the encoder cannot write one."""
    if profile is None:
        return png
    chunk = b"iCCP" + b"profile\0\0" + zlib.compress(profile)
    return png[:33] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + png[33:]


def peak(pixels: Pixels) -> int:
    """The value of white."""
    return int(np.iinfo(pixels.dtype).max)


def studio_luma(pixels: Pixels) -> Pixels:
    """The luma of RGB in studio range at the same bit depth, (H, W, 3) -> (H, W, 1), as in SwinIR's JPEG tests."""
    top = peak(pixels)
    luma = pixels.astype(np.float64) / top @ np.array(STUDIO_LUMA) + 16
    return np.round(luma * (top / 255)).astype(pixels.dtype)[..., None]


def full_luma(pixels: Pixels) -> Pixels:
    """The luma of RGB in full range, as decoders convert to gray."""
    return np.round(pixels.astype(np.float64) @ np.array(LUMA)).astype(pixels.dtype)[..., None]


def fit_channels(pixels: Pixels, channels: int, studio: bool = True) -> Pixels:
    """Drop alpha and convert to 1 or 3 channels: colour to its luma, gray to three equal channels."""
    colour = pixels[..., : 1 if pixels.shape[2] <= 2 else 3]
    if colour.shape[2] == channels:
        return colour
    if channels == 1:
        return studio_luma(colour) if studio else full_luma(colour)
    return np.repeat(colour, 3, axis=2)
