"""Splits of a dataset: their folder names, fingerprints, and images shared by two splits."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

__all__ = ["SPLITS", "Contents", "count_shared", "existing_folder", "hash_parts", "numbered_classes", "split_folder"]

SPLITS: Final = {"train": ("train", "training"), "validation": ("validation", "val", "valid", "test", "testing")}
_MOST_CLASSES: Final = 1_000_000
_MOST_COMPARED: Final = 2 << 30  # bytes read to find images that two splits share


def existing_folder(root: Path) -> Path:
    if not root.is_dir():
        found = f"{root} is a file, not a folder" if root.exists() else f"no folder {root}"
        raise ValueError(f"{found}; give the root of the dataset with --data.root")
    return root


def split_folder(root: Path, split: str, is_split: Callable[[Path], bool]) -> Path | None:
    """The folder of a split by its usual names, in any case, that `is_split` accepts; None if there is none."""
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    candidates = (path for name in SPLITS[split] for path in folders if path.name.lower() == name)
    return next((path for path in candidates if is_split(path)), None)


def numbered_classes(labels: np.ndarray, name: Callable[[int], str]) -> tuple[str, ...]:
    """Class indices as class names, from 0 to the largest label."""
    count = int(labels.max(initial=-1)) + 1
    if count > _MOST_CLASSES:
        raise ValueError(f"label {count - 1} of {name(int(labels.argmax()))} is not a valid class index; fix the labels")
    return tuple(map(str, range(count)))


def hash_parts(parts: Iterable[str | bytes]) -> str:
    """A fingerprint of a split: its classes, files and labels, in order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part)
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Contents:
    """The encoded images of a split, by position: their sizes in bytes, and a function that reads one."""

    sizes: Sequence[int]
    read: Callable[[int], bytes]

    @classmethod
    def of_files(cls, paths: Sequence[Path]) -> "Contents":
        paths = [path for path in paths if path.is_file()]  # reading a pipe would wait
        return cls([path.stat().st_size for path in paths], lambda place: paths[place].read_bytes())


def count_shared(known: Contents, measured: Contents) -> int | None:
    """How many of the `measured` images are byte-identical to one of `known`; None if the comparison would take minutes.

    Only images with the same size in bytes are read.
    """
    wanted = set(known.sizes) & set(measured.sizes)
    if sum(size for size in (*known.sizes, *measured.sizes) if size in wanted) > _MOST_COMPARED:
        return None
    seen = {_digest(known, place) for place, size in enumerate(known.sizes) if size in wanted}
    return sum(size in wanted and _digest(measured, place) in seen for place, size in enumerate(measured.sizes))


def _digest(contents: Contents, place: int) -> bytes:
    return hashlib.sha256(contents.read(place)).digest()
