"""Boxes and polygons read from another format, and how they are written as COCO json."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tailprop.data.broken import Broken

__all__ = ["AnnotatedImage", "Annotations", "AnyObject", "hold_out", "to_coco"]

_DIGITS = 3  # of coordinates in pixels


@dataclass(frozen=True)
class AnyObject:
    """An object of an image, in pixels."""

    category: int  # index of its class
    box: tuple[float, float, float, float]  # x, y, width, height
    polygon: tuple[float, ...] | None = None  # x, y, x, y, ...
    is_crowd: bool = False  # not trained on, and neither right nor wrong in evaluation


@dataclass(frozen=True)
class AnnotatedImage:
    """An image with its objects."""

    path: Path
    width: int
    height: int
    objects: tuple[AnyObject, ...]


@dataclass
class Annotations:
    """A dataset: its classes, and for each split the folder of its images and the images."""

    names: tuple[str, ...]
    folders: dict[str, Path] = field(default_factory=dict)
    splits: dict[str, list[AnnotatedImage]] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)


def hold_out(data: Annotations, share: float) -> None:
    """Divide a dataset of a single split into training and validation images, by a fixed seed."""
    ((name, images),) = data.splits.items()
    count = round(share * len(images))
    if not 0 < count < len(images):
        raise ValueError(f"a share of {share:g} of {len(images)} images leaves one of the splits empty; change --held-out")
    held = set(Random(0).sample(range(len(images)), count))
    folder = data.folders.pop(name)
    data.folders = {"train": folder, "val": folder}
    data.splits = {
        "train": [image for place, image in enumerate(images) if place not in held],
        "val": [image for place, image in enumerate(images) if place in held],
    }


def to_coco(names: Sequence[str], folder: Path, images: Sequence[AnnotatedImage]) -> dict[str, Any]:
    """The content of an annotation file in COCO's format; classes and images are numbered from 1."""
    entries, objects = [], []
    for key, image in enumerate(images, start=1):
        file_name = image.path.relative_to(folder).as_posix()
        entries.append(dict(id=key, file_name=file_name, width=image.width, height=image.height))
        objects += [dict(image_id=key, **_object(item)) for item in image.objects]
    return dict(
        images=entries,
        annotations=[dict(id=key, **entry) for key, entry in enumerate(objects, start=1)],
        categories=[dict(id=key, name=name) for key, name in enumerate(names, start=1)],
    )


def _object(item: AnyObject) -> dict[str, Any]:
    box = [round(value, _DIGITS) for value in item.box]
    entry = dict(category_id=item.category + 1, bbox=box, area=round(box[2] * box[3], _DIGITS), iscrowd=int(item.is_crowd))
    if item.polygon is None:
        return entry
    points = [round(value, _DIGITS) for value in item.polygon]
    return entry | dict(segmentation=[points], area=round(_polygon_area(points), _DIGITS))


def _polygon_area(points: Sequence[float]) -> float:
    """Gauss's shoelace formula."""
    x, y = np.array(points).reshape(-1, 2).T
    return 0.5 * abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1)))
