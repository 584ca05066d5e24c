"""Images without labels, as given to `predict`: finding the files and decoding them.

`list_images` expands files, folders and globs to paths, `read_image` decodes one image, and `prefetch` decodes the next batch
in a few threads while the model runs on the current one.
"""

import glob
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from tailprop.data.broken import Broken
from tailprop.utils.files import check_link, write_atomically

__all__ = [
    "FORMATS",
    "SUFFIXES",
    "check_no_overwrite",
    "crop_long_strip",
    "image_size",
    "is_image",
    "list_images",
    "open_image",
    "prefetch",
    "read_image",
    "save_image",
    "suppress_pillow_warnings",
    "unique_paths",
    "unique_stems",
    "upright_size",
]

# Common image formats. Pillow opens more (.h5, .mpg, .ps), but such files in a folder are rarely images.
SUFFIXES: Final = (
    *(".apng", ".avif", ".bmp", ".dib", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg"),
    *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".qoi", ".tga", ".tif", ".tiff", ".webp"),
)

# The formats of these suffixes. Pillow decides by content and would start Ghostscript for an EPS named .png. TGA is the last,
# because it has no signature.
FORMATS: Final = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "DIB", "GIF", "PPM", "JPEG2000", "AVIF", "QOI", "TGA")

T = TypeVar("T")
_ORIENTATION: Final = 0x0112  # EXIF tag


def open_image(file: Path | IO[bytes]) -> Image.Image:
    """Open an image of one of the formats above, lazily; everything in this package opens images here.

    A path must be a regular file: opening a pipe would wait for someone to write into it.
    """
    if isinstance(file, Path) and not stat.S_ISREG(file.stat().st_mode):
        raise OSError(f"it is not a file but {'a folder' if file.is_dir() else 'a pipe, a socket or a device'}")
    return Image.open(file, formats=FORMATS)


def save_image(path: Path, image: Image.Image, quality: int = 92) -> None:
    """Save an image atomically, as PNG or JPEG by its suffix."""
    kind = "PNG" if path.suffix.lower() == ".png" else "JPEG"
    write_atomically(path, lambda part: image.save(part, kind, quality=quality))


def list_images(named: Sequence[str]) -> list[Path]:
    """Paths of the images given as files, folders and globs, in the given order, without duplicates.

    A file is accepted with any suffix. A folder, also one that a glob matches, is searched recursively, in sorted order, for
    files with an image suffix; hidden files are skipped, and links to folders are not followed.
    """
    if not named:
        raise ValueError("no images given; give files, folders, or globs such as 'photos/*.jpg'")
    unique: dict[str, Path] = {}
    for path in (path for name in named for path in _expand(name)):
        unique.setdefault(os.path.abspath(path), path)  # noqa: PTH100 - resolve() would merge different links to one file
    return list(unique.values())


def _expand(name: str) -> list[Path]:
    path = Path(name).expanduser()  # the shell leaves ~ alone in quotes
    if path.is_dir():
        if not (images := _search(path)):
            raise ValueError(f"no images in the folder {path}; supported suffixes are {', '.join(SUFFIXES)}")
        return images
    if path.exists():  # checked before globs: a file may be named photo[1].jpg
        return [path]
    if not glob.has_magic(name):
        raise ValueError(f"no image or folder at {path}")
    matches = map(Path, sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207 - Path.glob rejects absolute patterns
    images = [image for match in matches for image in (_search(match) if match.is_dir() else [match])]
    if not (images := [image for image in images if is_image(image)]):
        raise ValueError(f"no image matches {name!r}")
    return images


def _search(folder: Path) -> list[Path]:
    images: list[Path] = []
    for where, below, names in os.walk(folder, onerror=_raise):
        below[:] = [name for name in below if not name.startswith(".")]  # thumbnails and other caches
        images += [Path(where, name) for name in names if not name.startswith(".") and is_image(Path(name))]
    return sorted(images)


def _raise(error: OSError) -> None:
    raise error  # by default os.walk silently skips a folder that it cannot read


def unique_paths(paths: Sequence[Path]) -> list[Path]:
    """Output paths without suffix, one for each image; a number is appended where a path would occur twice."""
    found: dict[Path, None] = {}  # in order, and quick to look up
    for path in paths:
        candidate, count = path.with_suffix(""), 1
        while candidate in found:
            count += 1
            candidate = path.with_name(f"{path.stem}_{count}")
        found[candidate] = None
    return list(found)


def unique_stems(paths: Sequence[Path]) -> list[str]:
    """File stems for one output folder, unique across images from different folders."""
    return [path.name for path in unique_paths([Path(path.name) for path in paths])]


def is_image(path: Path) -> bool:
    """Whether a file has an image suffix."""
    return path.suffix.lower() in SUFFIXES


def check_no_overwrite(paths: Sequence[Path], outputs: Sequence[Path], overwrite: bool) -> None:
    """Raise if an output path is one of the input images, or, without `overwrite`, an existing file."""
    images = {os.path.realpath(path) for path in paths}  # resolve() raises for a link to itself
    for output in outputs:
        if os.path.realpath(output) in images:
            raise ValueError(f"{output} is one of the input images and would be overwritten; choose another --out")
        check_link(output)
        if output.exists() and not overwrite:
            raise ValueError(f"{output} exists; choose another --out, or give --overwrite to replace existing files")


def image_size(path: Path) -> tuple[int, int] | Broken:
    """Width and height from the header of a file; nothing is decoded."""
    try:
        with open_image(path) as file:
            return file.size
    except Exception as error:  # decoders raise many kinds of errors on corrupt files
        return Broken(str(path), describe_error(error))


def upright_size(path: Path) -> tuple[int, int] | Broken:
    """Width and height of the image as it is shown, from the header: EXIF may say that it was stored lying on its side."""
    try:
        with open_image(path) as file:
            return file.size[::-1] if _is_lying(file) else file.size
    except Exception as error:  # decoders raise many kinds of errors on corrupt files
        return Broken(str(path), describe_error(error))


def _is_lying(file: Image.Image) -> bool:
    try:
        return file.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
    except Exception:  # the EXIF data is corrupt, and does not count in exif_transpose either
        return False


def read_image(path: Path, mode: str) -> Image.Image | Broken:
    """The first frame of an image file, EXIF-transposed and in Pillow's mode L, RGB or RGBA.

    Transparency is dropped if the mode has none, as in training. 16-bit gray is scaled to 8 bits.
    """
    try:
        with open_image(path) as file:
            return decode_image(file, mode)
    except Exception as error:  # on corrupt files Pillow raises OSError, ValueError, SyntaxError, and others
        return Broken(str(path), describe_error(error))


def decode_image(image: Image.Image, mode: str) -> Image.Image:
    """Decode an opened image, EXIF-transpose it and convert it to a mode."""
    image.load()
    return _convert(exif_transpose(image), mode)


def crop_long_strip(image: Image.Image, longest: int = 64) -> Image.Image:
    """Center-crop an image with an extreme aspect ratio.

    Evaluation resizes the shorter side before the center crop, which would take gigabytes for an image of 1x30000 pixels.
    """
    w, h = image.size
    most = longest * min(w, h)
    left, upper = max(0, w - most) // 2, max(0, h - most) // 2
    return image.crop((left, upper, left + min(w, most), upper + min(h, most))) if left or upper else image


def describe_error(error: Exception) -> str:
    """Why an image cannot be read, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    return " ".join((_reason(error) or type(error).__name__).split())


def exif_transpose(image: Image.Image) -> Image.Image:
    if (
        image.format == "JPEG" and "exif" not in image.info
    ):  # getexif() takes as long as a crop even where there is no EXIF data
        return image
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # the pixels were read; only the EXIF data is corrupt (for example SyntaxError)
        return image


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == "F":
        raise ValueError("its pixels are floats with an unknown white level; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        image = _to_8_bits(image)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # converting directly to RGB makes Pillow warn
    return image.convert(mode)


def _to_8_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)  # I;16, or I, which Pillow uses for 16 bits in some formats
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its pixels have 32 bits with an unknown white level; save it with 8 or 16 bits")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))  # 65535 = 257 * 255


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def prefetch(
    paths: Sequence[Path], read: Callable[[Path], T], batch: int, threads: int | None = None
) -> Iterator[list[tuple[Path, T]]]:
    """Yield batches of (path, read(path)) in order; the next batch is read in threads meanwhile."""
    with ThreadPoolExecutor(threads or min(4, os.cpu_count() or 1)) as pool:
        waiting: list[tuple[Path, Future[T]]] = []
        for first in range(0, len(paths), batch):
            coming = [(path, pool.submit(read, path)) for path in paths[first : first + batch]]
            if waiting:
                yield [(path, future.result()) for path, future in waiting]
            waiting = coming
        yield [(path, future.result()) for path, future in waiting]


@contextmanager
def suppress_pillow_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings about large images and corrupt metadata: unreadable files are reported as `Broken`.

    Wrap a whole loop with it rather than each image, because threads share the warning filters.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield
