"""Boxes in the format of Pascal VOC.

    Annotations/a.xml               JPEGImages/a.jpg
    ImageSets/Main/train.txt        one name without suffix in each line; also val, trainval and test

Corners are pixels counted from 1, both included: a box from 1 to the width covers the image. Difficult objects count neither as
found nor as missed in VOC's evaluation, and are not trained on.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tailprop.data.broken import Broken
from tailprop.data.formats.annotated import AnnotatedImage, Annotations, AnyObject
from tailprop.data.images import image_size, is_image, upright_size
from tailprop.utils.parsing import Node, parse_xml, read_bytes, read_text
from tailprop.utils.text import excerpt

__all__ = ["Difficult", "is_voc", "read_voc"]

ANNOTATIONS, IMAGES, LISTS = "Annotations", "JPEGImages", "ImageSets"
SPLITS: Final = ("train", "val", "trainval", "test")
CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
Difficult = Literal["ignore", "keep", "drop"]


@dataclass(frozen=True)
class _Named:
    """An object before the classes have numbers."""

    name: str
    box: tuple[float, float, float, float]
    is_difficult: bool


@dataclass(frozen=True)
class _Image:
    path: Path
    width: int
    height: int
    objects: tuple[_Named, ...]


def is_voc(root: Path) -> bool:
    return (root / ANNOTATIONS).is_dir()


def read_voc(root: Path, difficult: Difficult = "ignore") -> Annotations:
    """Read every annotation of a dataset; no image is decoded. Classes are in the order of the alphabet."""
    if not (root / IMAGES).is_dir():
        raise ValueError(f"{root} has {ANNOTATIONS}, but no folder {IMAGES}")
    broken: list[Broken] = []
    lists = _image_lists(root, broken)
    files = sorted(entry.name for entry in os.scandir(root / IMAGES))  # once: a folder has thousands
    images = {Path(name).stem: root / IMAGES / name for name in files if is_image(Path(name))}
    read: dict[str, _Image | None] = {}
    for name in (name for names in lists.values() for name in names):
        if name not in read:
            read[name] = _read_image(root / ANNOTATIONS / f"{name}.xml", images.get(name), broken)
    found = sorted({item.name for image in read.values() if image is not None for item in image.objects})
    if not found:
        first = f"; the first: {broken[0]}" if broken else ""
        raise ValueError(f"no annotation of {root / ANNOTATIONS} has an object{first}")
    data = Annotations(tuple(found), broken=broken)
    for split, names in lists.items():
        data.folders[split] = root / IMAGES
        kept = [image for name in names if (image := read[name]) is not None]
        data.splits[split] = [_numbered(image, found, difficult) for image in kept]
    return data


def _numbered(image: _Image, names: Sequence[str], difficult: Difficult) -> AnnotatedImage:
    objects = [item for item in image.objects if not (item.is_difficult and difficult == "drop")]
    ignored = difficult == "ignore"
    return AnnotatedImage(
        image.path,
        image.width,
        image.height,
        tuple(AnyObject(names.index(item.name), item.box, is_crowd=ignored and item.is_difficult) for item in objects),
    )


def _image_lists(root: Path, broken: list[Broken]) -> dict[str, list[str]]:
    """The names in each list of images; without lists, all annotations."""
    main = root / LISTS / "Main"
    folder = main if main.is_dir() else root / LISTS
    if found := {split: path for split in SPLITS if (path := folder / f"{split}.txt").is_file()}:
        return {split: list(dict.fromkeys(_listed(path, broken))) for split, path in found.items()}
    names = sorted(path.stem for path in (root / ANNOTATIONS).glob("*.xml"))
    if not names:
        raise ValueError(f"{root / ANNOTATIONS} has no xml files")
    return {"all": names}


def _listed(path: Path, broken: list[Broken]) -> Iterator[str]:
    lines = read_text(path).splitlines()
    if not any(line.strip() for line in lines):
        raise ValueError(f"{path} lists no images")
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if len(words) == 1 and Path(words[0]).name == words[0]:
            yield words[0]
        elif words:
            broken.append(Broken(f"{path}, line {number}", f"it is {excerpt(line.strip())}, not the name of an image alone"))


def _read_image(xml: Path, image: Path | None, broken: list[Broken]) -> _Image | None:
    where, objects = str(xml), []
    try:
        if image is None:
            raise ValueError(f"there is no image {xml.stem} in {IMAGES}")
        if not xml.is_file():
            raise ValueError(f"the file is missing, but a list in {LISTS} names it")
        root = parse_xml(read_bytes(xml), "it")
        if root.tag != "annotation":
            raise ValueError(f"its first element is {excerpt(root.tag)}, not annotation")
        if (size := root.find("size")) is not None:
            where = f"{xml}, line {size.line}"
        width, height = _size(size, image)
    except ValueError as error:
        broken.append(Broken(where, str(error)))
        return None
    for node in root.find_all("object"):
        try:
            objects.append(_read_object(node, width, height))
        except ValueError as error:
            broken.append(Broken(f"{xml}, line {node.line}", str(error)))
    return _Image(image, width, height, tuple(objects))


def _size(node: Node | None, path: Path) -> tuple[int, int]:
    """The annotated size: that of the upright image, or of the image as stored. Some programs write 0."""
    upright, stored = upright_size(path), image_size(path)
    if isinstance(upright, Broken) or isinstance(stored, Broken):
        raise ValueError(f"its image {upright if isinstance(upright, Broken) else stored}")
    if node is None:
        return upright
    given = (_number(node, "width"), _number(node, "height"))
    if given not in ((0, 0), upright, stored):
        raise ValueError("it is for {:g}x{:g}, but the image is {}x{}".format(*given, *upright))
    return stored if given == stored else upright


def _read_object(node: Node, width: int, height: int) -> _Named:
    name = _text(node, "name")
    if len(name.splitlines()) != 1:
        raise ValueError(f"its name is {excerpt(name)}, not a line of text")
    if (box := node.find("bndbox")) is None:
        raise ValueError(f"the object {name!r} has no bndbox")
    left, top, right, bottom = corners = [_number(box, corner) for corner in CORNERS]
    if not (0 <= left <= right <= width + 1 and 0 <= top <= bottom <= height + 1):
        raise ValueError(f"its box {_plain(corners)} is not in the image of {width}x{height}; corners count from 1")
    left, top = max(left - 1, 0), max(top - 1, 0)
    right, bottom = min(right, width), min(bottom, height)
    if not (right > left and bottom > top):
        raise ValueError(f"its box {_plain(corners)} is empty")
    flag = node.find("difficult")
    if flag is not None and flag.text.strip() not in ("", "0", "1"):
        raise ValueError(f"difficult is {excerpt(flag.text.strip())}, not 0 or 1")
    return _Named(name, (left, top, right - left, bottom - top), flag is not None and flag.text.strip() == "1")


def _plain(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)


def _text(node: Node, tag: str) -> str:
    child = node.find(tag)
    if child is None or not child.text.strip():
        raise ValueError(f"its {node.tag} has no {tag}")
    return child.text.strip()


def _number(node: Node, tag: str) -> float:
    text = _text(node, tag)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"its {tag} is {excerpt(text)}, not a number") from None
