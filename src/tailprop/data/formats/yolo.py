"""YOLO's text labels in the layout of Ultralytics.

    data.yaml                  names of the classes, and the images of each split; or classes.txt, one name per line
    images/train/a.jpg         labels/train/a.txt

A line of a label file is an object: "class x y w h", the centre and size of its box, or "class x y x y x y ...", a polygon of
three points or more. Coordinates are shares of the image's width and height. An image without a label file, or with an empty
one, has no objects.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tailprop.data.broken import Broken
from tailprop.data.formats.annotated import AnnotatedImage, Annotations, AnyObject
from tailprop.data.formats.label_maps import read_classes
from tailprop.data.images import is_image, list_images, upright_size
from tailprop.utils.parsing import parse_yaml, read_text
from tailprop.utils.text import excerpt

__all__ = ["find_yaml", "is_yolo", "parse_line", "read_yolo"]

IMAGES, LABELS, CLASSES = "images", "labels", "classes.txt"
YAMLS: Final = ("data.yaml", "data.yml", "dataset.yaml")
SPLITS: Final = ("train", "val", "test")
SLACK: Final = 0.01  # by which rounding may put a coordinate outside of the image


def is_yolo(root: Path) -> bool:
    return find_yaml(root) is not None or _class_list(root) is not None


def find_yaml(root: Path) -> Path | None:
    """The yaml file of a dataset, given as a file or as the folder it is in."""
    if root.is_file():
        return root if root.suffix.lower() in (".yaml", ".yml") else None
    return next((root / name for name in YAMLS if (root / name).is_file()), None)


def _class_list(root: Path) -> Path | None:
    return next((path for path in (root / CLASSES, root / LABELS / CLASSES) if path.is_file()), None)


def read_yolo(root: Path) -> Annotations:
    """Read every label of a dataset; no image is decoded."""
    yaml = find_yaml(root)
    names, images = _from_yaml(yaml) if yaml is not None else _from_folders(root)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{yaml or _class_list(root)} has the class {twice!r} twice")
    data = Annotations(names)
    for split, paths in images.items():
        data.folders[split] = Path(os.path.commonpath([path.parent for path in paths]))
        data.splits[split] = _read_split(paths, len(names), data.broken)
    data.broken += _without_image({_label_path(path): path for paths in images.values() for path in paths})
    return data


def _from_folders(root: Path) -> tuple[tuple[str, ...], dict[str, list[Path]]]:
    """Classes of a classes.txt, and the splits that images/ is divided into; all of images/ if it is not."""
    classes = _class_list(root)
    assert classes is not None  # `is_yolo` has found it
    folder = root / IMAGES
    if not folder.is_dir():
        raise ValueError(f"{root} has {CLASSES}, but no folder {IMAGES}")
    splits = {name: list_images([str(folder / name)]) for name in SPLITS if (folder / name).is_dir()}
    return read_classes(classes).names, splits or {"all": list_images([str(folder)])}


def _from_yaml(path: Path) -> tuple[tuple[str, ...], dict[str, list[Path]]]:
    content = parse_yaml(read_text(path), path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} has no settings of a dataset (names, train, val)")
    if content.get("kpt_shape") is not None:
        raise ValueError(f"{path} describes keypoints (kpt_shape), which are neither boxes nor polygons")
    root, images = _root(path, content.get("path")), {}
    for split in SPLITS:
        if content.get(split) is not None:
            images[split] = _images(path, root, split, content[split])
    if not images:
        raise ValueError(f"{path} names no images; it needs train, val or test")
    return _names(path, content), images


def _names(path: Path, content: dict[Any, Any]) -> tuple[str, ...]:
    names = content.get("names")
    if isinstance(names, dict):
        if set(names) != set(range(len(names))):
            raise ValueError(f"{path}: the numbers of its names must be 0 to {len(names) - 1}, got {excerpt(list(names))}")
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names:
        raise ValueError(f"{path} has no names of classes; write names: [first, second]")
    is_text = [
        isinstance(name, str | int) and not isinstance(name, bool) and len(str(name).splitlines()) == 1 for name in names
    ]
    if not all(is_text):
        bad = excerpt(names[is_text.index(False)])
        raise ValueError(f"{path}: the name of a class is {bad}, not a line of text; write it in quotes")
    if content.get("nc") not in (None, len(names)):
        raise ValueError(f"{path} has nc: {excerpt(content['nc'])}, but {len(names)} names")
    return tuple(map(str, names))


def _root(path: Path, given: Any) -> Path:
    """The folder that the images are relative to: `path` if it exists here, else that of the yaml file."""
    if given is not None and not isinstance(given, str):
        raise ValueError(f"{path}: its path is {excerpt(given)}, not text")
    candidates = [path.parent / given, Path(given)] if given else []
    return next((folder for folder in candidates if folder.is_dir()), path.parent)


def _images(path: Path, root: Path, split: str, given: Any) -> list[Path]:
    """The images of a split: a folder, a text file with an image in each line, or a list of those."""
    places = given if isinstance(given, list) else [given]
    found: dict[Path, None] = {}
    for place in places:
        if not isinstance(place, str) or not place:
            raise ValueError(f"{path}: {split} is {excerpt(place)}, not a folder or a text file")
        # Roboflow writes ../train/images for the folder train/images beside the yaml file.
        candidates = [root / place, root / place.removeprefix("../")]
        where = next((candidate for candidate in candidates if candidate.exists()), None)
        if where is None:
            raise ValueError(f"{path}: there is no {root / place}, which {split} names")
        found |= dict.fromkeys(list_images([str(where)]) if where.is_dir() else _listed(where, root))
    return list(found)


def _listed(path: Path, root: Path) -> list[Path]:
    images = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        image = root / line.strip()
        if not image.is_file():
            raise ValueError(f"{path}, line {number}: there is no image {image}")
        images.append(image)
    if not images:
        raise ValueError(f"{path} lists no images")
    return images


def _label_path(image: Path) -> Path:
    """The label file of an image: the last folder `images` becomes `labels`; without such a folder it lies beside the image."""
    parts = list(image.parts)
    places = [place for place, part in enumerate(parts[:-1]) if part == IMAGES]
    if places:
        parts[places[-1]] = LABELS
    return Path(*parts).with_suffix(".txt")


def _read_split(paths: Sequence[Path], num_classes: int, broken: list[Broken]) -> list[AnnotatedImage]:
    labels = {path: _label_path(path) for path in paths}
    owners: dict[Path, Path] = {}
    for path, label in labels.items():
        if label in owners:
            broken.append(Broken(str(path), f"{owners[label]} has the same label file, {label}"))
        owners.setdefault(label, path)
    if not any(label.is_file() for label in owners):
        first = next(iter(owners))
        raise ValueError(f"none of the {len(paths)} images has a label file; the first should be {first}")
    images = [_read_image(path, label, num_classes, broken) for label, path in owners.items()]
    return [image for image in images if image is not None]


def _without_image(owners: dict[Path, Path]) -> list[Broken]:
    """The label files whose image does not exist. Beside images, a text file may be anything."""
    found: list[Broken] = []
    for folder in dict.fromkeys(label.parent for label in owners):
        places = {image.parent for label, image in owners.items() if label.parent == folder}
        stems = {path.stem for place in places for path in place.iterdir() if is_image(path)}
        texts = [path for path in sorted(folder.glob("*.txt")) if path.name != CLASSES] if folder not in places else []
        found += [Broken(str(path), "its image is missing") for path in texts if path.stem not in stems]
    return found


def _read_image(path: Path, label: Path, num_classes: int, broken: list[Broken]) -> AnnotatedImage | None:
    size = upright_size(path)
    if isinstance(size, Broken):
        broken.append(size)
        return None
    objects: dict[AnyObject, None] = {}  # a line that occurs twice is one object, as Ultralytics has it
    try:
        lines = read_text(label).splitlines() if label.is_file() else []
    except ValueError:
        broken.append(Broken(str(label), "it is not a text file in UTF-8, or is corrupt"))
        return None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            objects[parse_line(line, size, num_classes)] = None
        except ValueError as error:
            broken.append(Broken(f"{label}, line {number}", str(error)))
    return AnnotatedImage(path, *size, tuple(objects))


def parse_line(line: str, size: tuple[int, int], num_classes: int) -> AnyObject:
    """The object of a line; raises ValueError with what is wrong in it."""
    words = line.split()
    if len(words) != 5 and (len(words) < 7 or len(words) % 2 == 0):
        raise ValueError(f"it has {len(words)} numbers; a box has 5 (class x y w h), a polygon an odd number from 7 on")
    try:
        category, *shares = map(float, words)
    except ValueError:
        bad = next(word for word in words if not _is_number(word))
        raise ValueError(f"{excerpt(bad)} is not a number") from None
    if not 0 <= category < num_classes or category != int(category):
        raise ValueError(f"its class is {excerpt(words[0])}, but the {num_classes} classes are 0 to {num_classes - 1}")
    if outside := [word for word, share in zip(words[1:], shares, strict=True) if not -SLACK <= share <= 1 + SLACK]:
        raise ValueError(f"{excerpt(outside[0])} is outside of the image; coordinates are shares of its sides, from 0 to 1")
    if len(shares) == 4:
        x, y, w, h = shares
        points = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        polygon = None
    else:
        points = (min(shares[0::2]), min(shares[1::2]), max(shares[0::2]), max(shares[1::2]))
        polygon = _to_pixels(shares, size)
    left, top, right, bottom = _to_pixels(points, size)
    if not (right > left and bottom > top):
        raise ValueError("it is empty: its width or height is 0")
    return AnyObject(int(category), (left, top, right - left, bottom - top), polygon)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _to_pixels(shares: Sequence[float], size: tuple[int, int]) -> tuple[float, ...]:
    """x, y, x, y, ... in pixels, clipped to the image."""
    return tuple(min(max(share, 0.0), 1.0) * size[place % 2] for place, share in enumerate(shares))
