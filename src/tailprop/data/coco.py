"""Annotation files in COCO's format: images, objects and categories of any dataset, with every flaw named.

Categories become labels 1, 2, ... in the order of their ids (0 is the background), whatever their number and names. What is
damaged is listed as `Broken`, object by object, so that a training can go on without it or stop.
"""

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
from PIL import Image

from tailprop.data.loading import Broken
from tailprop.data.pictures import prepare

__all__ = ["CocoImage", "CocoSet", "decode_masks", "read_coco"]


@dataclass(frozen=True)
class CocoImage:
    """A picture and its sound objects, as the file has them."""

    id: int
    path: Path
    width: int
    height: int
    objects: tuple[dict[str, Any], ...]

    @property
    def targets(self) -> list[dict[str, Any]]:
        """The objects to learn from: no crowds, and nothing without extent."""
        return [a for a in self.objects if not a.get("iscrowd", 0) and min(self._clipped(a["bbox"])) >= 1]

    def _clipped(self, box: Sequence[float]) -> tuple[float, float]:
        """Width and height of the part of a box that lies in the picture."""
        x, y, w, h = box
        return min(x + w, self.width) - max(x, 0), min(y + h, self.height) - max(y, 0)


@dataclass
class CocoSet:
    """What an annotation file holds."""

    name: str
    images: list[CocoImage]
    categories: dict[int, str]  # by id
    broken: list[Broken] = field(default_factory=list)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.categories[i] for i in self.category_ids)

    @property
    def category_ids(self) -> list[int]:
        """Label k stands for entry k - 1."""
        return sorted(self.categories)

    def ground_truth(self, ids: set[int] | None = None) -> dict[str, Any]:
        """The content of an annotation file with what is sound, for some images or for all."""
        kept = [image for image in self.images if ids is None or image.id in ids]
        return dict(
            info={},
            images=[dict(id=i.id, file_name=i.path.name, width=i.width, height=i.height) for i in kept],
            annotations=[dict(a, iscrowd=a.get("iscrowd", 0)) for image in kept for a in image.objects],
            categories=[dict(id=i, name=self.categories[i]) for i in self.category_ids],
        )

    def fingerprint(self) -> str:
        """Of the images and objects, in order."""
        digest = hashlib.sha256("\n".join(self.classes).encode())
        for image in self.images:
            objects = [(a["id"], a["category_id"], a["bbox"], a.get("iscrowd", 0)) for a in image.objects]
            digest.update(json.dumps([image.id, image.path.name, image.width, image.height, objects]).encode())
        return digest.hexdigest()[:16]


def read_coco(annotations: Path, folder: Path) -> CocoSet:
    """Read an annotation file and look up its pictures in a folder; no picture is opened."""
    content = _read_json(annotations)
    if not folder.is_dir():
        raise ValueError(f"no folder {folder} with the pictures of {annotations}; give it with --data")
    categories = _categories(content["categories"], annotations)
    broken: list[Broken] = []
    sizes = {entry.get("id"): entry for entry in content["images"]}
    objects: dict[Any, list[dict[str, Any]]] = {key: [] for key in sizes}
    for number, annotation in enumerate(content["annotations"]):
        where = f"{annotations.name}, annotation {annotation.get('id', f'number {number}')}"
        flaw = _flaw(annotation, sizes, categories)
        if flaw is None:
            objects[annotation["image_id"]].append({"id": number + 1, **annotation})
        else:
            broken.append(Broken(where, flaw))
    present = {entry.name for entry in os.scandir(folder)}
    images = []
    for key, entry in sizes.items():
        flaw = _image_flaw(entry, present, folder)
        if flaw is not None:
            broken.append(Broken(str(folder / str(entry.get("file_name", f"image {key}"))), flaw))
            continue
        path, width, height = folder / entry["file_name"], int(entry["width"]), int(entry["height"])
        images.append(CocoImage(int(key), path, width, height, tuple(objects[key])))
    if not images:
        first = f"; the first: {broken[0]}" if broken else ""
        raise ValueError(f"{annotations} names no picture that is in {folder}{first}")
    return CocoSet(annotations.name, images, categories, broken)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"no annotation file {path}")
    try:
        content = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not json ({error}); it may be cut short") from None
    missing = [name for name in ("images", "annotations", "categories") if not isinstance(_get(content, name), list)]
    if missing:
        raise ValueError(f"{path} is not in COCO's format: it has no list of {', '.join(missing)}")
    return content


def _get(content: Any, name: str) -> Any:
    return content.get(name) if isinstance(content, dict) else None


def _categories(entries: list[dict[str, Any]], path: Path) -> dict[int, str]:
    names = {int(entry["id"]): str(entry.get("name", entry["id"])) for entry in entries if "id" in entry}
    if not names or len(names) != len(entries):
        raise ValueError(f"{path} needs categories, each with an id of its own")
    if len(set(names.values())) != len(names):
        raise ValueError(f"{path} has two categories of one name")
    return names


def _image_flaw(entry: dict[str, Any], present: set[str], folder: Path) -> str | None:
    if not all(key in entry for key in ("id", "file_name", "width", "height")):
        return "its entry lacks id, file_name, width or height"
    if min(entry["width"], entry["height"]) < 1:
        return f"its size is given as {entry['width']}x{entry['height']}"
    name = str(entry["file_name"])
    found = (folder / name).is_file() if "/" in name else name in present
    return None if found else "the picture is missing"


def _flaw(annotation: dict[str, Any], sizes: dict[Any, dict[str, Any]], categories: dict[int, str]) -> str | None:
    """What makes an annotation useless; none if it is sound. A box without extent is sound: it is just not learned."""
    if annotation.get("image_id") not in sizes:
        return f"its image {annotation.get('image_id')} is not in the file"
    if annotation.get("category_id") not in categories:
        return f"its category {annotation.get('category_id')} is unknown; the file has {len(categories)} others"
    box = annotation.get("bbox")
    if not _is_numbers(box) or len(box) != 4:
        return f"its box is {box}, not x, y, width, height"
    return _shape_flaw(annotation.get("segmentation"), sizes[annotation["image_id"]])


def _is_numbers(values: Any) -> TypeGuard[list[float]]:
    return isinstance(values, list) and all(isinstance(v, int | float) and math.isfinite(v) for v in values)


def _shape_flaw(shape: Any, image: dict[str, Any]) -> str | None:
    if isinstance(shape, list):
        if not shape:
            return "it has no polygon"
        bad = next((p for p in shape if not _is_numbers(p) or len(p) < 6 or len(p) % 2), None)
        return None if bad is None else f"its polygon is broken: {_short(bad)}"
    if isinstance(shape, dict):
        return _runs_flaw(shape, image)
    return "it has no segmentation"


def _runs_flaw(runs: dict[str, Any], image: dict[str, Any]) -> str | None:
    size, counts = runs.get("size"), runs.get("counts")
    if size != [image.get("height"), image.get("width")]:
        return f"its run lengths are for {size}, the picture is {[image.get('height'), image.get('width')]}"
    if isinstance(counts, list) and (not _is_numbers(counts) or sum(counts) != size[0] * size[1]):
        return "its run lengths do not add up to the picture"
    return None if isinstance(counts, list | str) else "its run lengths are missing"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def decode_masks(objects: Sequence[dict[str, Any]], width: int, height: int) -> npt.NDArray[np.uint8]:
    """The masks of objects, (N, H, W)."""
    from pycocotools import mask as coco_mask

    masks = np.zeros((len(objects), height, width), dtype=np.uint8)
    for mask, annotation in zip(masks, objects, strict=True):
        shape = annotation["segmentation"]
        if isinstance(shape, list):
            runs = coco_mask.merge(coco_mask.frPyObjects(shape, height, width))
        elif isinstance(shape["counts"], list):
            runs = coco_mask.frPyObjects(shape, height, width)
        else:
            runs = shape
        mask[:] = coco_mask.decode(runs)
    return masks


def read_annotated(image: CocoImage) -> Image.Image:
    """The picture the annotations were drawn on: upright, or as stored where only that has the annotated size."""
    with Image.open(image.path) as file:
        stored = file.size
        picture = prepare(file, "RGB")
        wanted = (image.width, image.height)
        if picture.size != wanted and stored == wanted:
            picture = file.convert("RGB")
    if picture.size != wanted:
        raise ValueError(f"it is {picture.size[0]}x{picture.size[1]}, its annotations are for {image.width}x{image.height}")
    return picture
