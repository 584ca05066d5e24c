"""Pictures a user points at, without labels: which files are meant, and what is in them.

Any task that answers for single pictures starts here: `list_pictures` makes paths of what was typed, `read_picture` decodes
one, and `read_ahead` keeps a few threads decoding while the model works on the batch before.
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
    "is_picture",
    "list_pictures",
    "quiet_pillow",
    "read_ahead",
    "read_picture",
    "refuse_what_is_there",
    "shorten",
    "size_of",
    "unique_paths",
    "unique_stems",
]

# What cameras, scanners and the web write. Pillow opens more (.h5, .mpg, .ps), but in a folder those are rarely meant.
SUFFIXES: Final = (
    *(".apng", ".avif", ".bmp", ".dib", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg"),
    *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".qoi", ".tga", ".tif", ".tiff", ".webp"),
)

T = TypeVar("T")


def list_pictures(named: Sequence[str]) -> list[Path]:
    """The pictures meant by files, folders and globs, in the order named, each once.

    A file is taken whatever its name. A folder is searched with all folders below it, in sorted order, for files named like
    pictures, and so is a folder a glob matches; hidden files are left out, and links to folders are not followed.
    """
    if not named:
        raise ValueError("no pictures given; name files, folders, or globs such as 'photos/*.jpg'")
    unique: dict[str, Path] = {}
    for path in (path for name in named for path in _expand(name)):
        unique.setdefault(os.path.abspath(path), path)  # noqa: PTH100 - resolve() would merge links that are named apart
    return list(unique.values())


def _expand(name: str) -> list[Path]:
    path = Path(name).expanduser()  # the shell leaves ~ alone in quotes
    if path.is_dir():
        if not (pictures := _search(path)):
            raise ValueError(f"no pictures in the folder {path}; looked for {', '.join(SUFFIXES)}")
        return pictures
    if path.exists():  # asked before globs: a file may well be named photo[1].jpg
        return [path]
    if not glob.has_magic(name):
        raise ValueError(f"no picture or folder at {path}")
    matches = map(Path, sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207 - Path.glob refuses absolute ones
    pictures = [picture for match in matches for picture in (_search(match) if match.is_dir() else [match])]
    if not (pictures := [picture for picture in pictures if is_picture(picture)]):
        raise ValueError(f"no picture matches {name!r}")
    return pictures


def _search(folder: Path) -> list[Path]:
    pictures: list[Path] = []
    for where, below, names in os.walk(folder, onerror=_refuse):
        below[:] = [name for name in below if not name.startswith(".")]  # thumbnails and other caches
        pictures += [Path(where, name) for name in names if not name.startswith(".") and is_picture(Path(name))]
    return sorted(pictures)


def _refuse(error: OSError) -> None:
    raise error  # os.walk would leave out a folder it may not read, and nobody would know


def unique_paths(paths: Sequence[Path]) -> list[Path]:
    """Paths without their suffixes for what is written of each picture, with a number where one is taken."""
    found: dict[Path, None] = {}  # in order, and quick to look up
    for path in paths:
        candidate, count = path.with_suffix(""), 1
        while candidate in found:
            count += 1
            candidate = path.with_name(f"{path.stem}_{count}")
        found[candidate] = None
    return list(found)


def unique_stems(paths: Sequence[Path]) -> list[str]:
    """The same in one folder, wherever the pictures are."""
    return [path.name for path in unique_paths([Path(path.name) for path in paths])]


def is_picture(path: Path) -> bool:
    """Whether a file is named like a picture."""
    return path.suffix.lower() in SUFFIXES


def refuse_what_is_there(paths: Sequence[Path], answers: Sequence[Path], overwrite: bool) -> None:
    """What is made of pictures never takes the place of one of them, nor, unless told, of any other file."""
    pictures = {path.resolve() for path in paths}
    for answer in answers:
        if answer.resolve() in pictures:
            raise ValueError(f"{answer} is one of the pictures and would be written over; choose another --out")
        if answer.exists() and not overwrite:
            raise ValueError(f"{answer} exists; choose another --out, or give --overwrite to write over what is there")


def size_of(path: Path) -> tuple[int, int] | Broken:
    """Width and height by the header of a file; nothing is decoded."""
    try:
        with Image.open(path) as file:
            return file.size
    except Exception as error:  # decoders trip over damage in many ways
        return Broken(str(path), reason_of(error))


def read_picture(path: Path, mode: str) -> Image.Image | Broken:
    """The picture in a file, upright and in Pillow's mode L, RGB or RGBA; of several frames the first.

    Transparency is dropped where the mode has none, as it is in training. Gray of 16 bits is scaled to 8.
    """
    try:
        with Image.open(path) as file:
            return prepare(file, mode)
    except Exception as error:  # damage makes Pillow raise OSError, ValueError, SyntaxError, and whatever a decoder trips over
        return Broken(str(path), reason_of(error))


def prepare(picture: Image.Image, mode: str) -> Image.Image:
    """An opened picture, decoded, turned upright and brought to a mode."""
    picture.load()
    return _convert(upright(picture), mode)


def shorten(picture: Image.Image, longest: int = 64) -> Image.Image:
    """The middle of a very long strip. Evaluation enlarges the shorter side before it cuts the middle out of the longer, and
    would ask for gigabytes to enlarge a line of 1x30000 pixels.
    """
    w, h = picture.size
    most = longest * min(w, h)
    left, upper = max(0, w - most) // 2, max(0, h - most) // 2
    return picture.crop((left, upper, left + min(w, most), upper + min(h, most))) if left or upper else picture


def reason_of(error: Exception) -> str:
    """Why a picture cannot be read, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "not a picture"
    return " ".join((_reason(error) or type(error).__name__).split())


def upright(picture: Image.Image) -> Image.Image:
    if picture.format == "JPEG" and "exif" not in picture.info:  # looking for notes that are not there takes as long as a crop
        return picture
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # the pixels were read; only the notes of the camera are damaged (SyntaxError, for one)
        return picture


def _convert(picture: Image.Image, mode: str) -> Image.Image:
    if picture.mode == "F":
        raise ValueError("its pixels are floats, and nothing says which of them is white; save it with 8 or 16 bits")
    if picture.mode.startswith("I"):
        picture = _to_8_bits(picture)
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")  # the way Pillow wants it: going to RGB at once draws a warning
    return picture.convert(mode)


def _to_8_bits(picture: Image.Image) -> Image.Image:
    values = np.asarray(picture).astype(np.int64)  # I;16, or I, which Pillow makes of 16 bits in some formats
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its pixels have 32 bits, and nothing says which of them is white; save it with 8 or 16 bits")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))  # 65535 = 257 * 255


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def read_ahead(
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
def quiet_pillow() -> Iterator[None]:
    """Without Pillow's warnings of large pictures and damaged notes: what cannot be read is reported as `Broken`.

    For a whole loop rather than each picture, as threads share the filters of warnings.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield
