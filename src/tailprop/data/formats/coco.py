"""Annotation files in COCO's format: images, objects and categories of any dataset, with every flaw named.

Categories become labels 1, 2, ... in the order of their ids (0 is the background), whatever their number and names. What is
corrupt is listed as `Broken`, object by object, so that training can leave it out or stop.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np
import numpy.typing as npt
from PIL import Image

from tailprop.data.broken import Broken
from tailprop.data.images import decode_image
from tailprop.data.packing import Packed

__all__ = ["CocoImage", "CocoSet", "area_of", "decode_counts", "decode_masks", "encode_mask", "read_coco"]

LARGEST_PX: Final = 100_000  # side of an image
FAR: Final = 4  # longer sides of the image; no polygon reaches beyond, and pycocotools would run out of memory filling it
BOUND: Final = 1e9  # of a box's numbers


@dataclass(frozen=True)
class CocoImage:
    """An image and its sound objects, as the file has them."""

    id: int
    path: Path
    width: int
    height: int
    packed: Packed = field(repr=False)  # the objects of all images
    place: int  # those of this one

    @property
    def objects(self) -> list[dict[str, Any]]:
        return self.packed[self.place]

    @property
    def targets(self) -> list[dict[str, Any]]:
        """The objects to learn from: no crowds, and nothing without extent."""
        return [a for a in self.objects if not a.get("iscrowd", 0) and min(self._clipped(a["bbox"])) >= 1]

    def _clipped(self, box: Sequence[float]) -> tuple[float, float]:
        """Width and height of the part of a box that lies in the image."""
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
        """The content of an annotation file with what is sound, for some images or for all.

        Objects are numbered anew from 1: COCO's evaluators take the number 0 for "nothing matched", and one that is given
        twice for one object.
        """
        kept = [image for image in self.images if ids is None or image.id in ids]
        objects = [
            dict(a, iscrowd=int(a.get("iscrowd", 0)), area=area_of(a, i.width, i.height)) for i in kept for a in i.objects
        ]
        return dict(
            info={},
            images=[dict(id=i.id, file_name=i.path.name, width=i.width, height=i.height) for i in kept],
            annotations=[dict(a, id=number, iscrowd=int(a.get("iscrowd", 0))) for number, a in enumerate(objects, start=1)],
            categories=[dict(id=i, name=self.categories[i]) for i in self.category_ids],
        )

    def fingerprint(self) -> str:
        """Of the images and objects, in order."""
        digest = hashlib.sha256("\n".join(self.classes).encode())
        for image in self.images:
            objects = [(a["id"], a["category_id"], a["bbox"], a.get("iscrowd", 0), a["segmentation"]) for a in image.objects]
            digest.update(json.dumps([image.id, image.path.name, image.width, image.height, objects]).encode())
        return digest.hexdigest()[:16]


def read_coco(annotations: Path, folder: Path) -> CocoSet:
    """Read an annotation file and look up its images in a folder; no image is opened."""
    content = _read_json(annotations)
    if not folder.is_dir():
        raise ValueError(f"no folder {folder} with the images of {annotations}; give it with --data")
    categories = _categories(content["categories"], annotations)
    entries, broken = _image_entries(content["images"], folder)
    objects = _objects(content, entries, categories, annotations.name, broken)
    present = {entry.name for entry in os.scandir(folder)}
    packed, images = Packed(objects[key] for key in entries), []
    for place, (key, entry) in enumerate(entries.items()):
        if not _is_there(entry["file_name"], present, folder):
            broken.append(Broken(str(folder / entry["file_name"]), "the image is missing"))
            continue
        path, width, height = folder / entry["file_name"], int(entry["width"]), int(entry["height"])
        images.append(CocoImage(key, path, width, height, packed, place))
    if not images:
        first = f"; the first: {broken[0]}" if broken else ""
        raise ValueError(f"{annotations} names no image that is in {folder}{first}")
    return CocoSet(annotations.name, images, categories, broken)


def _objects(
    content: dict[str, Any], images: dict[int, dict[str, Any]], categories: dict[int, str], file: str, broken: list[Broken]
) -> dict[int, list[dict[str, Any]]]:
    """The sound annotations of each image; the others are added to `broken`, unless their image is there already."""
    named = {entry["id"] for entry in content["images"] if _is_whole(_get(entry, "id"))}
    found: dict[int, list[dict[str, Any]]] = {key: [] for key in images}
    for number, annotation in enumerate(content["annotations"]):
        image, flaw = _get(annotation, "image_id"), _flaw(annotation, images, categories)
        if flaw is None:
            whole = dict(image_id=int(image), category_id=int(annotation["category_id"]))
            found[image].append({"id": number + 1, **annotation, **whole})
        elif not _is_whole(image) or image in images or image not in named:
            which = _get(annotation, "id")
            broken.append(Broken(f"{file}, annotation {f'number {number}' if which is None else which}", flaw))
    return found


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"no annotation file {path}; name the folder it is in with --data.root")
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not json ({error}); it may be cut short") from None
    missing = [name for name in ("images", "annotations", "categories") if not isinstance(_get(content, name), list)]
    if missing:
        raise ValueError(f"{path} is not in COCO's format: it has no list of {', '.join(missing)}")
    return content


def _get(content: Any, name: str) -> Any:
    return content.get(name) if isinstance(content, dict) else None


def _is_whole(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number; some programs write 7.0 for 7."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


def _categories(entries: list[Any], path: Path) -> dict[int, str]:
    names: dict[int, str] = {}
    for number, entry in enumerate(entries):
        key = _get(entry, "id")
        if not _is_whole(key):
            raise ValueError(f"{path}, category number {number}: its id is {_short(key)}, not a whole number")
        name = entry.get("name", str(key))
        if not isinstance(name, str) or len(name.splitlines()) != 1:
            raise ValueError(f"{path}, category {key}: its name is {_short(repr(name))}, not a line of text")
        if key in names or name in names.values():
            raise ValueError(f"{path} has two categories with the {f'id {key}' if key in names else f'name {name!r}'}")
        names[int(key)] = name
    if not names:
        raise ValueError(f"{path} needs categories, each with an id of its own")
    return names


def _image_entries(entries: list[Any], folder: Path) -> tuple[dict[int, dict[str, Any]], list[Broken]]:
    """The sound entries by id, whether their images are there or not, and the others."""
    sound: dict[int, dict[str, Any]] = {}
    broken: list[Broken] = []
    for number, entry in enumerate(entries):
        flaw = _image_flaw(entry)
        if flaw is None and entry["id"] in sound:
            flaw = f"its id {entry['id']} is that of {sound[entry['id']]['file_name']} too"
        if flaw is None:
            sound[int(entry["id"])] = entry
        else:
            broken.append(Broken(str(folder / str(_get(entry, "file_name") or f"image number {number}")), flaw))
    return sound, broken


def _image_flaw(entry: Any) -> str | None:
    if not all(_get(entry, key) is not None for key in ("id", "file_name", "width", "height")):
        return "its entry lacks id, file_name, width or height"
    if not isinstance(entry["file_name"], str):
        return f"its file_name is {_short(entry['file_name'])}, not text"
    if not _is_whole(entry["id"]):
        return f"its id is {_short(repr(entry['id']))}, not a whole number"
    sides = (entry["width"], entry["height"])
    if not all(_is_whole(side) and 1 <= side <= LARGEST_PX for side in sides):
        return f"its size is given as {_short(f'{sides[0]}x{sides[1]}')}"
    return None


def _is_there(name: str, present: set[str], folder: Path) -> bool:
    return (folder / name).is_file() if "/" in name else name in present


def _flaw(annotation: Any, images: dict[int, dict[str, Any]], categories: dict[int, str]) -> str | None:
    """What makes an annotation useless; none if it is sound. A box without extent is sound: it is just not learned."""
    if not isinstance(annotation, dict):
        return f"it is {_short(annotation)}, not an entry with names"
    image, category = annotation.get("image_id"), annotation.get("category_id")
    if not _is_whole(image) or image not in images:
        return f"its image {_short(image)} is not in the file"
    if not _is_whole(category) or category not in categories:
        return f"its category {_short(category)} is unknown; the file has {len(categories)} others"
    if annotation.get("iscrowd", 0) not in (0, 1):
        return f"its iscrowd is {_short(annotation['iscrowd'])}, not 0 or 1"
    box = annotation.get("bbox")
    if not _are_numbers(box, BOUND) or len(box) != 4:
        return f"its box is {_short(box)}, not x, y, width, height"
    return _shape_flaw(annotation.get("segmentation"), images[image])


def _are_numbers(values: Any, bound: float) -> TypeGuard[list[float]]:
    """Whether it is a list of numbers, none of them beyond a bound; NaN is beyond any."""
    return isinstance(values, list) and all(_is_number(v) and -bound <= v <= bound for v in values)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shape_flaw(shape: Any, image: dict[str, Any]) -> str | None:
    if isinstance(shape, list):
        if not shape:
            return "it has no polygon"
        far = FAR * max(image["width"], image["height"])
        bad = next((p for p in shape if not _are_numbers(p, far) or len(p) < 6 or len(p) % 2), None)
        return None if bad is None else f"its polygon is broken: {_short(bad)}"
    if isinstance(shape, dict):
        return _runs_flaw(shape, image)
    return "it has no segmentation, and Mask R-CNN needs masks"


def _runs_flaw(runs: dict[str, Any], image: dict[str, Any]) -> str | None:
    size, counts = runs.get("size"), runs.get("counts")
    if size != [image["height"], image["width"]] or not all(isinstance(side, int) for side in size):
        return f"its run lengths are for {_short(size)}, the image is {[image['height'], image['width']]}"
    lengths = decode_counts(counts) if isinstance(counts, str) else counts
    if not isinstance(lengths, list):
        return "its run lengths are missing" if counts is None else f"its run lengths are corrupt: {_short(counts)}"
    if not all(isinstance(n, int) and n >= 0 for n in lengths) or sum(lengths) != image["height"] * image["width"]:
        return "its run lengths do not add up to the image"
    return None


def decode_counts(text: str) -> list[int] | None:
    """The run lengths in COCO's compressed text, or none if it is no such text.

    A number is written in groups of five bits, the lowest first, each as a character from "0" on with 32 added if more
    follow; from the third on it is the difference to the number two before. pycocotools takes any text and reads on behind
    its end, so what comes from a file is decoded here first.
    """
    lengths: list[int] = []
    number = shift = 0
    for character in text:
        group = ord(character) - 48
        if not 0 <= group < 64:
            return None
        number |= (group & 31) << shift
        shift += 5
        if group & 32:
            continue
        if group & 16:
            number -= 1 << shift  # negative
        lengths.append(number + (lengths[-2] if len(lengths) > 2 else 0))
        number = shift = 0
    return lengths if shift == 0 else None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _runs(shape: Any, width: int, height: int) -> Any:
    """A segmentation as pycocotools' compressed run lengths."""
    from pycocotools import mask as coco_mask

    if isinstance(shape, list):
        return coco_mask.merge(coco_mask.frPyObjects(shape, height, width))
    return coco_mask.frPyObjects(shape, height, width) if isinstance(shape["counts"], list) else shape


def decode_masks(objects: Sequence[dict[str, Any]], width: int, height: int) -> npt.NDArray[np.uint8]:
    """The masks of objects, (N, H, W)."""
    from pycocotools import mask as coco_mask

    masks = np.zeros((len(objects), height, width), dtype=np.uint8)
    for mask, annotation in zip(masks, objects, strict=True):
        mask[:] = coco_mask.decode(_runs(annotation["segmentation"], width, height))
    return masks


def encode_mask(mask: npt.NDArray[Any]) -> dict[str, Any]:
    """A mask as COCO's compressed run lengths, with the counts as text so that json takes them."""
    from pycocotools import mask as coco_mask

    runs = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    return dict(size=[int(side) for side in runs["size"]], counts=runs["counts"].decode("ascii"))


def area_of(annotation: dict[str, Any], width: int, height: int) -> float:
    """The area an object is given, or that of its mask, or of its box: COCO sorts objects into small and large by it."""
    from pycocotools import mask as coco_mask

    given = annotation.get("area")
    if _is_number(given) and 0 <= given <= BOUND * BOUND:
        return given
    if annotation.get("segmentation") is not None:
        return float(coco_mask.area(_runs(annotation["segmentation"], width, height)))
    return float(annotation["bbox"][2] * annotation["bbox"][3])


def read_annotated(image: CocoImage) -> Image.Image:
    """The image the annotations were drawn on: upright, or as stored where only that has the annotated size."""
    with Image.open(image.path) as file:
        stored = file.size
        pil_image = decode_image(file, "RGB")
        wanted = (image.width, image.height)
        if pil_image.size != wanted and stored == wanted:
            pil_image = file.convert("RGB")
    if pil_image.size != wanted:
        raise ValueError(f"it is {pil_image.size[0]}x{pil_image.size[1]}, its annotations are for {image.width}x{image.height}")
    return pil_image
