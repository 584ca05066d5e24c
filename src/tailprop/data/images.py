"""Images a user points at, without labels: which files are meant, and what is in them.

Any task that answers for single images starts here: `list_images` makes paths of what was typed, `read_image` decodes
one, and `prefetch` keeps a few threads decoding while the model works on the batch before.
"""

import glob
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from tailprop.data.broken import Broken

__all__ = [
    "SUFFIXES",
    "check_no_overwrite",
    "crop_long_strip",
    "image_size",
    "is_image",
    "list_images",
    "prefetch",
    "read_image",
    "suppress_pillow_warnings",
    "unique_paths",
    "unique_stems",
]

# What cameras, scanners and the web write. Pillow opens more (.h5, .mpg, .ps), but in a folder those are rarely meant.
SUFFIXES: Final = (
    *(".apng", ".avif", ".bmp", ".dib", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg"),
    *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".qoi", ".tga", ".tif", ".tiff", ".webp"),
)

T = TypeVar("T")


def list_images(named: Sequence[str]) -> list[Path]:
    """The images meant by files, folders and globs, in the order named, each once.

    A file is taken whatever its name. A folder is searched with all folders below it, in sorted order, for files named like
    images, and so is a folder a glob matches; hidden files are left out, and links to folders are not followed.
    """
    if not named:
        raise ValueError("no images given; name files, folders, or globs such as 'photos/*.jpg'")
    unique: dict[str, Path] = {}
    for path in (path for name in named for path in _expand(name)):
        unique.setdefault(os.path.abspath(path), path)  # noqa: PTH100 - resolve() would merge links that are named apart
    return list(unique.values())


def _expand(name: str) -> list[Path]:
    path = Path(name).expanduser()  # the shell leaves ~ alone in quotes
    if path.is_dir():
        if not (images := _search(path)):
            raise ValueError(f"no images in the folder {path}; looked for {', '.join(SUFFIXES)}")
        return images
    if path.exists():  # asked before globs: a file may well be named photo[1].jpg
        return [path]
    if not glob.has_magic(name):
        raise ValueError(f"no image or folder at {path}")
    matches = map(Path, sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207 - Path.glob refuses absolute ones
    images = [image for match in matches for image in (_search(match) if match.is_dir() else [match])]
    if not (images := [image for image in images if is_image(image)]):
        raise ValueError(f"no image matches {name!r}")
    return images


def _search(folder: Path) -> list[Path]:
    images: list[Path] = []
    for where, below, names in os.walk(folder, onerror=_refuse):
        below[:] = [name for name in below if not name.startswith(".")]  # thumbnails and other caches
        images += [Path(where, name) for name in names if not name.startswith(".") and is_image(Path(name))]
    return sorted(images)


def _refuse(error: OSError) -> None:
    raise error  # os.walk would leave out a folder it may not read, and nobody would know


def unique_paths(paths: Sequence[Path]) -> list[Path]:
    """Paths without their suffixes for what is written of each image, with a number where one is taken."""
    found: dict[Path, None] = {}  # in order, and quick to look up
    for path in paths:
        candidate, count = path.with_suffix(""), 1
        while candidate in found:
            count += 1
            candidate = path.with_name(f"{path.stem}_{count}")
        found[candidate] = None
    return list(found)


def unique_stems(paths: Sequence[Path]) -> list[str]:
    """The same in one folder, wherever the images are."""
    return [path.name for path in unique_paths([Path(path.name) for path in paths])]


def is_image(path: Path) -> bool:
    """Whether a file is named like an image."""
    return path.suffix.lower() in SUFFIXES


def check_no_overwrite(paths: Sequence[Path], answers: Sequence[Path], overwrite: bool) -> None:
    """What is made of images never takes the place of one of them, nor, unless told, of any other file."""
    images = {path.resolve() for path in paths}
    for answer in answers:
        if answer.resolve() in images:
            raise ValueError(f"{answer} is one of the images and would be written over; choose another --out")
        if answer.exists() and not overwrite:
            raise ValueError(f"{answer} exists; choose another --out, or give --overwrite to write over what is there")


def image_size(path: Path) -> tuple[int, int] | Broken:
    """Width and height by the header of a file; nothing is decoded."""
    try:
        with Image.open(path) as file:
            return file.size
    except Exception as error:  # decoders trip over corrupt files in many ways
        return Broken(str(path), describe_error(error))


def read_image(path: Path, mode: str) -> Image.Image | Broken:
    """The image in a file, upright and in Pillow's mode L, RGB or RGBA; of several frames the first.

    Transparency is dropped where the mode has none, as it is in training. Gray of 16 bits is scaled to 8.
    """
    try:
        with Image.open(path) as file:
            return decode_image(file, mode)
    except (
        Exception
    ) as error:  # corrupt files make Pillow raise OSError, ValueError, SyntaxError, and whatever a decoder trips over
        return Broken(str(path), describe_error(error))


def decode_image(image: Image.Image, mode: str) -> Image.Image:
    """An opened image, decoded, turned upright and brought to a mode."""
    image.load()
    return _convert(exif_transpose(image), mode)


def crop_long_strip(image: Image.Image, longest: int = 64) -> Image.Image:
    """The middle of a very long strip. Evaluation enlarges the shorter side before it cuts the middle out of the longer, and
    would ask for gigabytes to enlarge a line of 1x30000 pixels.
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
    if image.format == "JPEG" and "exif" not in image.info:  # looking for notes that are not there takes as long as a crop
        return image
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # the pixels were read; only the notes of the camera are corrupt (SyntaxError, for one)
        return image


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == "F":
        raise ValueError("its pixels are floats, and nothing says which of them is white; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        image = _to_8_bits(image)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # the way Pillow wants it: going to RGB at once draws a warning
    return image.convert(mode)


def _to_8_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)  # I;16, or I, which Pillow makes of 16 bits in some formats
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its pixels have 32 bits, and nothing says which of them is white; save it with 8 or 16 bits")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))  # 65535 = 257 * 255


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def prefetch(
    paths: Sequence[Path], read: Callable[[Path], T], batch: int, threads: int | None = None
) -> Iterator[list[tuple[Path, T]]]:
    """What `read` makes of each path, in order and in batches; the batch after the one handed out is being read meanwhile."""
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
    """Without Pillow's warnings of large images and corrupt notes: what cannot be read is reported as `Broken`.

    For a whole loop rather than each image, as threads share the filters of warnings.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield
