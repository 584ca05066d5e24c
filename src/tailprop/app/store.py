"""Images that were dropped on the page, and the photographs it offers. They are kept in memory and never written."""

import io
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Final

from PIL import Image

from tailprop.data.images import decode_image, describe_error, exif_transpose, open_image

__all__ = ["MOST_PIXELS", "MOST_SIDE_PX", "SAMPLES", "Photo", "Photographs", "check_size", "decode", "sample"]

MOST_SIDE_PX: Final = 12_000
MOST_PIXELS: Final = 64_000_000
_KEPT_PIXELS: Final = 200_000_000  # of all images together
_LONGEST_NAME: Final = 120
# Photographs that scikit-image installs; it would download others.
SAMPLES: Final = {
    "astronaut": "Astronaut (NASA)",
    "chelsea": "Cat",
    "coffee": "Coffee",
    "rocket": "Rocket",
    "camera": "Photographer, gray",
    "moon": "Moon, gray",
}


@dataclass(frozen=True)
class Photo:
    """A decoded image, upright."""

    name: str
    image: Image.Image

    @cached_property
    def rgb(self) -> Image.Image:
        return self.image if self.image.mode == "RGB" else decode_image(self.image, "RGB")


def decode(data: bytes, name: str) -> Photo:
    """Decode an image; raises with a reason for the page."""
    if not data:
        raise ValueError(f"{name} is empty")
    try:
        with open_image(io.BytesIO(data)) as file:
            check_size(*file.size, name)
            file.load()
            return Photo(name, exif_transpose(file).copy())
    except _TooManyPixelsError as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # decoders raise many kinds of errors on corrupt files
        if isinstance(error, Image.DecompressionBombError):
            raise ValueError(f"{name} has too many pixels; {_LIMIT}") from None
        reason = describe_error(error)
        if reason == "not an image":
            raise ValueError(
                f"{name} is not an image of a known format (PNG, JPEG, WebP, TIFF, BMP, GIF, PPM, JPEG 2000, AVIF, QOI, TGA)"
            ) from None
        raise ValueError(f"{name} cannot be read: {reason}") from None


_LIMIT: Final = f"the page takes up to {MOST_SIDE_PX} px a side and {MOST_PIXELS // 1_000_000} megapixels"


class _TooManyPixelsError(ValueError):
    pass


def check_size(width: int, height: int, name: str) -> None:
    """Raise for an image that is larger than the page takes."""
    if max(width, height) > MOST_SIDE_PX or width * height > MOST_PIXELS:
        raise _TooManyPixelsError(f"{name} is {width} x {height} px; {_LIMIT}. Make it smaller first")


class Photographs:
    """The images of this session by an id that cannot be guessed; the oldest are dropped."""

    def __init__(self) -> None:
        self._photos: OrderedDict[str, Photo] = OrderedDict()
        self._lock = Lock()

    def add(self, data: bytes, name: str) -> tuple[str, Photo]:
        photo = decode(data, name[:_LONGEST_NAME] or "the file")
        key = secrets.token_urlsafe(12)
        with self._lock:
            self._photos[key] = photo
            while len(self._photos) > 1 and sum(_pixels(p) for p in self._photos.values()) > _KEPT_PIXELS:
                self._photos.popitem(last=False)
        return key, photo

    def get(self, key: str) -> Photo:
        """An image by its id, or one of the samples by its name."""
        with self._lock:
            if key in self._photos:
                self._photos.move_to_end(key)
                return self._photos[key]
            if key in SAMPLES:
                self._photos[key] = photo = sample(key)
                return photo
        raise ValueError("the page no longer has this image; drop it again")


def _pixels(photo: Photo) -> int:
    return photo.image.width * photo.image.height


def sample(name: str) -> Photo:
    """One of the photographs that come along."""
    from skimage import data

    return Photo(SAMPLES[name], Image.fromarray(getattr(data, name)()))
