"""Images with label maps: a folder of images, a folder of label map PNGs, and a list of classes.

This is ADE20K's layout (ADEChallengeData2016), which most datasets share: an image `a.jpg` has its label map in `a.png`, whose
pixels are class indices. The first class has the index `first_label`; lower values, and 255 unless it is a class, are ignored.
A list of classes can define that index itself, in a table with a column Idx; a plain list starts at 0. If the list has colours
(`colors`), the pixels of label maps are colours, with or without a palette, and their numbers do not matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from tailprop.data.broken import Broken
from tailprop.data.formats.colors import ColorTable, parse_colors
from tailprop.data.images import decode_image, describe_error, is_image, open_image
from tailprop.data.splits import hash_parts
from tailprop.utils.parsing import read_text

__all__ = ["ADE20K", "IGNORE", "ClassList", "LabelSet", "Labelled", "find_classes", "read_labelled", "read_labels", "read_pair"]

IGNORE: Final = -1  # the label of ignored pixels
ADE20K: Final = "ade20k"  # name of its 150 classes
# Looked for in the root of the dataset; the last three have colours.
CLASS_FILES: Final = ("objectInfo150.txt", "classes.txt", "label_colors.txt", "class_dict.csv", "labelmap.txt")
MODES: Final = ("L", "P", "1", "I", "I;16")  # of PNGs with one value for each pixel

Labels = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Labelled:
    """Paths of an image and its label map."""

    image: Path
    labels: Path


@dataclass(frozen=True)
class ClassList:
    """Class names in the order of their labels, and the label of the first, or the colour of each."""

    names: tuple[str, ...]
    first_label: int = 0
    colors: ColorTable | None = None


@dataclass
class LabelSet:
    """The image and label map pairs of two folders."""

    name: str
    pairs: list[Labelled]
    classes: tuple[str, ...]
    first_label: int
    broken: list[Broken] = field(default_factory=list)
    colors: ColorTable | None = None

    def fingerprint(self) -> str:
        """A hash of the classes, the file names and the file sizes of the label maps; reading 20,000 of them takes minutes."""
        rows = (f"{pair.image.name} {pair.labels.name} {pair.labels.stat().st_size}\n" for pair in self.pairs)
        colors = [] if self.colors is None else [str(self.colors)]
        return hash_parts(["\n".join((*self.classes, str(self.first_label))), *colors, *rows])


def read_labelled(
    images: Path, labels: Path, classes: Sequence[str], first_label: int, colors: ColorTable | None = None
) -> LabelSet:
    """Match images and label maps by name; neither is opened."""
    for folder, what in ((images, "images"), (labels, "label maps")):
        if not folder.is_dir():
            raise ValueError(f"no folder {folder} with the {what}; set it with --data")
    maps = {path.stem: path for path in sorted(labels.iterdir()) if path.suffix.lower() == ".png"}
    found = sorted(path for path in images.iterdir() if is_image(path) and not path.name.startswith("."))
    if images.resolve() == labels.resolve():  # in one folder, the PNGs are the label maps
        found = [path for path in found if path.suffix.lower() != ".png"]
    pairs, broken = [], []
    for path in found:
        if path.stem in maps:
            pairs.append(Labelled(path, maps[path.stem]))
        else:
            broken.append(Broken(str(path), f"its label map {labels / path.stem}.png is missing"))
    stems = {path.stem for path in found}
    broken += [Broken(str(path), f"its image is missing in {images}") for stem, path in maps.items() if stem not in stems]
    if not pairs:
        first = f"; the first: {broken[0]}" if broken else ""
        raise ValueError(f"no image of {images} has a label map in {labels}{first}")
    return LabelSet(str(images), pairs, tuple(classes), first_label, broken, colors)


def find_classes(root: Path, given: str | None) -> ClassList:
    """The classes: ADE20K's, those of a given file, or those of a file in the root of the dataset."""
    if given == ADE20K:
        return ade20k_classes()
    if given is not None:
        return read_classes(next((path for path in (root / given, Path(given)) if path.is_file()), Path(given)))
    for name in CLASS_FILES:
        if (root / name).is_file():
            return read_classes(root / name)
    raise ValueError(
        f"{root} has no list of classes; write their names to {root / 'classes.txt'}, one per line in the order of their "
        f"labels, or give a file with --data.classes ({ADE20K} for the 150 classes of ADE20K)"
    )


def has_classes(root: Path) -> bool:
    """Whether the root of a dataset has a list of classes."""
    return any((root / name).is_file() for name in CLASS_FILES)


def ade20k_classes() -> ClassList:
    return ClassList(tuple((files("tailprop.data.formats") / "ade20k_classes.txt").read_text().split("\n")[:-1]), first_label=1)


def read_classes(path: Path) -> ClassList:
    """Read one class name per line, perhaps with its colour, or a table like ADE20K's: labels in a column Idx, names last."""
    if not path.is_file():
        raise ValueError(f"no list of classes {path}")
    try:
        text = read_text(path)
    except ValueError as error:
        raise ValueError(f"{error}; a list of classes has one name per line") from None
    if (coloured := parse_colors(path, text)) is not None:
        return ClassList(coloured[0], colors=coloured[1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first_label = 0
    header = lines[0].split("\t") if lines else []
    if len(header) > 1 and header[-1] == "Name":
        if "Idx" not in header:
            raise ValueError(f"the table {path} has no column Idx with the label of each class")
        table = [line.split("\t") for line in lines[1:]]
        lines = [cells[-1].strip() for cells in table]
        first_label = _first_label(path, [cells[header.index("Idx")] for cells in table])
    twice = next((name for name in lines if lines.count(name) > 1), None)
    if not lines or twice is not None:
        raise ValueError(f"{path} has {'no class' if twice is None else f'{twice!r} twice'}; it needs one name per line")
    return ClassList(tuple(lines), first_label)


def _first_label(path: Path, labels: Sequence[str]) -> int:
    """The first of consecutive labels."""
    if not labels:
        return 0
    first = int(labels[0]) if labels[0].isdecimal() and len(labels[0]) < 10 else 0
    if list(labels) != [str(label) for label in range(first, first + len(labels))]:
        raise ValueError(f"the labels in column Idx of {path} must be consecutive numbers")
    return first


def read_labels(path: Path, num_classes: int, first_label: int, colors: ColorTable | None = None) -> Labels:
    """A label map as class indices from 0 on and IGNORE, (H, W); raises ValueError for a value that is not a class."""
    with open_image(path) as file:
        if colors is not None:
            return colors.indices(np.asarray(decode_image(file, "RGB")), IGNORE)
        if file.mode not in MODES:
            raise ValueError(
                f"its mode is {file.mode}, but a label map has one value per pixel; for colours, name their table with "
                "--data.colors"
            )
        step = _gray_step(file)
        values = np.asarray(file).astype(np.int64) // step
    last = first_label + num_classes - 1
    ignored = (values < first_label) | ((values == 255) & (last < 255))
    wrong = values[(values > last) & ~ignored]
    if wrong.size > 0:
        found = ", ".join(
            f"{value} ({count} pixels)" for value, count in zip(*np.unique(wrong, return_counts=True), strict=True)
        )
        raise ValueError(f"it has labels that are not a class: {found}; the {num_classes} classes are {first_label} to {last}")
    return np.where(ignored, IGNORE, values - first_label).astype(np.int16)


def _gray_step(file: Image.Image) -> int:
    """The factor by which Pillow scales gray of 2 and 4 bits to 0 to 255: with 4 bits, a label of 2 is read as 34."""
    tiles = getattr(file, "tile", None)  # how the file stores its pixels; only known before decoding
    stored = tiles[0][3] if tiles else None
    return {"L;2": 85, "L;4": 17}.get(stored, 1) if isinstance(stored, str) else 1


def read_pair(
    pair: Labelled, num_classes: int, first_label: int, colors: ColorTable | None = None
) -> tuple[Image.Image, Labels] | Broken:
    """The image in RGB and its labels, or which of the two files is broken and why."""
    broken_path = pair.labels
    try:
        labels = read_labels(pair.labels, num_classes, first_label, colors)
        broken_path = pair.image
        image = _read_as_labelled(pair.image, (labels.shape[1], labels.shape[0]))
    except Exception as error:  # decoders raise many kinds of errors on corrupt files
        return Broken(str(broken_path), describe_error(error))
    if image.size != (labels.shape[1], labels.shape[0]):
        sizes = f"it is {labels.shape[1]}x{labels.shape[0]}, but its image {pair.image} is {image.width}x{image.height}"
        return Broken(str(pair.labels), sizes)
    return image, labels


def _read_as_labelled(path: Path, size: tuple[int, int]) -> Image.Image:
    """The image EXIF-transposed, or as stored if only that has the size of the label map."""
    with open_image(path) as file:
        stored = file.size
        image = decode_image(file, "RGB")
        return file.convert("RGB") if image.size != size and stored == size else image
