"""Sources of labelled images: folders, parquet snapshots, timm's datasets, scikit-learn's digits.

A source has its classes and labels in memory, and reads one image at a time.
"""

import hashlib
import io
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from tailprop.data.formats.parquet import Parquet
from tailprop.data.images import is_image, open_image
from tailprop.data.splits import SPLITS, Contents, existing_folder, hash_parts, numbered_classes, split_folder
from tailprop.runtime.distributed import print_main
from tailprop.utils.text import counted, printable

__all__ = [
    "SPLITS",
    "Digits",
    "Folder",
    "Parquet",
    "Source",
    "TimmDataset",
    "check_labels",
    "check_same_classes",
    "split_hash",
]


class Source(Protocol):
    """Images with labels. `labels[i]` is an index into `classes`."""

    classes: tuple[str, ...]  # class names
    labels: np.ndarray  # class index of each image

    def read(self, index: int) -> Image.Image: ...  # may raise OSError for a broken file

    def name(self, index: int) -> str: ...  # for error messages

    def contents(self) -> Contents | None: ...  # the encoded images; None if reading them is expensive


class Folder:
    """One folder for each class: root/train/cat/1.jpg and root/val/cat/2.jpg, or root/cat/1.jpg with a held-out fraction."""

    def __init__(self, root: Path, split: str, held_out: float = 0.2) -> None:
        from torchvision.datasets.folder import find_classes, make_dataset

        self.root = existing_folder(root)
        given = _split_folders(root)
        where = given[split]
        if where is None and (others := [folder.name for folder in given.values() if folder is not None]):
            raise ValueError(f"{root} has a folder {others[0]} but none named {' or '.join(SPLITS[split])}")
        try:
            names = [name for name in find_classes(str(given["train"] or where or root))[0] if not name.startswith(".")]
            index = {name: i for i, name in enumerate(names)}
            images = make_dataset(str(where or root), index, is_valid_file=_is_visible_image, allow_empty=True)
        except FileNotFoundError as error:
            raise ValueError(f"{root}: {error}; expected one folder of images for each class") from None
        _check_known_classes(where or root, names)
        if split == "train":
            _warn_of_stray_images(where or root)
        self.share = held_out if where is None else None  # held-out fraction; None = there are split folders
        if where is None:  # no splits: hold out a fraction, chosen by file name so that new files do not move old ones
            chosen = _hold_out(images, root, held_out)
            images = [p for p in images if (p[0] in chosen) == (split != "train")]
        if not images:
            hint = "; add images, raise --data.held-out, or make folders train and val" if where is None else ""
            raise ValueError(f"no {split} images under {where or root}{hint}")
        _warn_of_empty_classes(names, {label for _, label in images}, split, where or root)
        self.classes = tuple(names)
        self.paths = [Path(path) for path, _ in images]
        self.labels = np.array([label for _, label in images])

    def read(self, index: int) -> Image.Image:
        return open_image(self.paths[index])

    def name(self, index: int) -> str:
        return str(self.paths[index].relative_to(self.root))

    def contents(self) -> Contents | None:
        return Contents.of_files(self.paths)


class TimmDataset:
    """A timm dataset by name: torch/cifar10; hfds/timm/mini-imagenet, or another Hugging Face dataset with the columns image
    and label; folder for timm's own folder reader.
    """

    def __init__(self, name: str, root: Path | None, split: str, download: bool = False) -> None:
        from timm.data import create_dataset

        try:
            self.data = create_dataset(name, root=str(root) if root else None, split=split, download=download)
            self.labels = np.array(_timm_labels(self.data))
        except (RuntimeError, AssertionError, AttributeError, FileNotFoundError, TypeError, KeyError, ImportError) as error:
            raise ValueError(f"timm cannot open {name!r} under {root}: {error or 'not found'}") from None
        reader = getattr(self.data, "reader", self.data)
        names = getattr(self.data, "classes", None) or getattr(reader, "class_to_idx", None)
        self.classes = tuple(map(str, names)) if names else numbered_classes(self.labels, self.name)

    def read(self, index: int) -> Image.Image:
        if not hasattr(self.data, "reader"):
            return self.data[index][0]
        with self.data.reader[index][0] as file:  # timm's dataset would silently replace a broken image by the next
            return open_image(io.BytesIO(file.read()))

    def name(self, index: int) -> str:
        if hasattr(self.data, "filename"):
            file = self.data.filename(index)
        else:
            file = self.data.samples[index][0] if hasattr(self.data, "samples") else None
        return file or f"image {index}"

    def contents(self) -> Contents | None:
        return None


class Digits:
    """scikit-learn's 1,797 handwritten digits, 8x8 scans; the same third is always held out."""

    def __init__(self, split: str) -> None:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        raw, labels = load_digits(return_X_y=True)
        train, test = train_test_split(np.arange(len(labels)), test_size=1 / 3, stratify=labels, random_state=0)
        self.rows = train if split == "train" else test
        self.images = np.round(raw.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        self.labels = labels[self.rows]
        self.classes = tuple(str(digit) for digit in range(10))

    def read(self, index: int) -> Image.Image:
        return Image.fromarray(self.images[self.rows[index]]).resize((32, 32), Image.Resampling.BICUBIC)

    def name(self, index: int) -> str:
        return f"digit {self.rows[index]}"

    def contents(self) -> Contents | None:
        return None


def split_hash(source: Source) -> str:
    """A fingerprint of the images of a split, their order and their labels."""
    parts: list[str | bytes] = ["\n".join(source.classes), np.ascontiguousarray(source.labels, dtype=np.int64).tobytes()]
    if isinstance(source, Folder):
        parts.append("\n".join(source.name(i) for i in range(len(source.labels))))
    elif isinstance(source, Parquet):
        parts.append("\n".join(f"{shard.name} {shard.stat().st_size}" for shard in source.shards))
    return hash_parts(parts)


def check_labels(source: Source, num_classes: int, what: str, advice: str = "") -> None:
    """Raise if a label is outside the model's classes."""
    wrong = np.flatnonzero((source.labels < 0) | (source.labels >= num_classes))
    if len(wrong) > 0:
        raise ValueError(
            f"label {source.labels[wrong[0]]} of {source.name(int(wrong[0]))} ({what}) is not a valid class index from "
            f"0 to {num_classes - 1} ({counted(len(wrong), 'invalid label')} in total); fix the labels{advice}"
        )


def check_same_classes(train: Source, validation: Source) -> None:
    """Raise if two splits number their classes differently: metrics would be silently wrong.

    If classes have no names, a split has the classes up to its highest label.
    """
    pairs = zip(train.classes, validation.classes, strict=False)
    if (wrong := next(((a, b) for a, b in pairs if a != b), None)) is not None:
        raise ValueError(
            f"the classes of training and validation differ: {wrong[0]!r} in one has the same index as {wrong[1]!r} in the "
            "other; both need the same classes in the same order"
        )


def _split_folders(root: Path) -> dict[str, Path | None]:
    """The folders of the splits, which contain class folders. A folder of that name with images is a class."""
    return {split: split_folder(root, split, _holds_folders) for split in SPLITS}


def _holds_folders(folder: Path) -> bool:
    inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
    folders, images = [p for p in inside if p.is_dir()], [p for p in inside if _is_visible_image(str(p))]
    if folders and images:
        raise ValueError(
            f"{folder} has both images ({images[0].name}) and folders ({folders[0].name}): a split has a folder for each "
            "class, a class has images; move the images or the folders"
        )
    return bool(folders)


def _is_visible_image(path: str) -> bool:
    return is_image(Path(path)) and not Path(path).name.startswith(".")  # macOS writes ._1.jpg beside 1.jpg


def _warn_of_empty_classes(names: Sequence[str], present: set[int], split: str, where: Path) -> None:
    empty = [name for i, name in enumerate(names) if i not in present]
    if empty:
        print_main(f"{where}: classes without {split} images: {', '.join(map(printable, empty[:5]))}")


def _warn_of_stray_images(where: Path) -> None:
    strays = sorted(path.name for path in where.iterdir() if path.is_file() and _is_visible_image(str(path)))
    if strays:
        print_main(f"{where}: skipped {counted(len(strays), 'image')} outside the class folders ({printable(strays[0])})")


def _check_known_classes(where: Path, names: Sequence[str]) -> None:
    extra = sorted({p.name for p in where.iterdir() if p.is_dir() and not p.name.startswith(".")} - set(names))
    if extra:
        raise ValueError(
            f"{where} has classes that the training split does not have: {', '.join(extra[:5])}; remove or add them"
        )


def _hold_out(images: Sequence[tuple[str, int]], root: Path, share: float) -> set[str]:
    """The held-out files, chosen by file name; at least one of every class, and never all of a class."""
    chosen: set[str] = set()
    by_class: dict[int, list[tuple[float, str]]] = defaultdict(list)
    for path, label in images:
        by_class[label].append((_hash_to_unit(path, root), path))
    for files in map(sorted, by_class.values()):
        count = sum(position < share for position, _ in files)
        if 0 < share < 1 and len(files) > 1:
            count = min(max(count, 1), len(files) - 1)
        chosen |= {path for _, path in files[:count]}
    return chosen


def _hash_to_unit(path: str, root: Path) -> float:
    """A number from 0 to 1 that depends only on the path of a file relative to the root."""
    digest = hashlib.sha256(os.fsencode(Path(path).relative_to(root).as_posix())).digest()
    return int.from_bytes(digest[:4]) / 2**32


def _timm_labels(data: Any) -> Sequence[int]:
    if hasattr(data, "targets"):
        return data.targets
    reader: Any = getattr(data, "reader", None)
    if hasattr(reader, "samples"):
        return [label for _, label in reader.samples]
    if hasattr(reader, "dataset") and hasattr(reader, "label_key"):  # a Hugging Face dataset
        return reader.dataset[reader.label_key][:]
    raise ValueError("this dataset can only be read sequentially; use a parquet snapshot or a folder instead")
