"""Annotation files in COCO's format for any dataset; invalid entries are reported one by one.

Categories become labels 1, 2, ... in the order of their ids (0 is the background). Invalid images and annotations are listed as
`Broken`, so that training can skip them or stop.

Masks are optional: a file without any is a set of boxes. A file in which some annotations have one is a set with masks, and the
annotations without are invalid, unless masks are not wanted.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, TypeGuard

import numpy as np
import numpy.typing as npt
from PIL import Image

from tailprop.data.broken import Broken
from tailprop.data.images import decode_image, open_image
from tailprop.data.packing import Packed
from tailprop.data.splits import hash_parts
from tailprop.utils.parsing import parse_json, read_bytes
from tailprop.utils.text import excerpt

__all__ = ["CocoImage", "CocoSet", "Masks", "area_of", "decode_counts", "decode_masks", "encode_mask", "read_coco"]

LARGEST_PX: Final = 100_000  # side of an image
LONGEST_BITS: Final = 60  # of a run length; longer numbers would take quadratic time to read
FAR: Final = 4  # times the longer side of the image; polygons beyond it are invalid, pycocotools would run out of memory
LARGEST_ID: Final = 2**53  # of whole numbers; programs that keep them as floats cannot tell larger ones apart
BOUND: Final = 1e9  # largest absolute coordinate of a box
Masks = Literal["auto", "yes", "no"]  # auto = if there are any


@dataclass(frozen=True)
class CocoImage:
    """An image and its valid annotations, as they are in the file."""

    id: int
    path: Path
    width: int
    height: int
    packed: Packed = field(repr=False)  # the objects of all images
    place: int  # index of this image's objects in `packed`

    @property
    def objects(self) -> list[dict[str, Any]]:
        return self.packed[self.place]

    @property
    def targets(self) -> list[dict[str, Any]]:
        """The objects to train on, without crowds and empty boxes."""
        return [a for a in self.objects if not a.get("iscrowd", 0) and min(self._clipped(a["bbox"])) >= 1]

    def _clipped(self, box: Sequence[float]) -> tuple[float, float]:
        """Width and height of a box clipped to the image."""
        x, y, w, h = box
        return min(x + w, self.width) - max(x, 0), min(y + h, self.height) - max(y, 0)


@dataclass
class CocoSet:
    """The content of an annotation file."""

    name: str
    images: list[CocoImage]
    categories: dict[int, str]  # by id
    broken: list[Broken] = field(default_factory=list)
    has_masks: bool = True

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.categories[i] for i in self.category_ids)

    @property
    def category_ids(self) -> list[int]:
        """Category ids in the order of labels: label k has entry k - 1."""
        return sorted(self.categories)

    def ground_truth(self, ids: set[int] | None = None) -> dict[str, Any]:
        """The valid entries as the content of an annotation file, for some images or for all.

        Annotations get new ids from 1: COCO's evaluators use the id 0 for "no match", and take two annotations with the same
        id for one.
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
        """A hash of the images and objects, in order."""
        return hash_parts(["\n".join(self.classes), *map(self._describe, self.images)])

    @staticmethod
    def _describe(image: CocoImage) -> str:
        objects = [(a["id"], a["category_id"], a["bbox"], a.get("iscrowd", 0), a.get("segmentation")) for a in image.objects]
        return json.dumps([image.id, image.path.name, image.width, image.height, objects])


def read_coco(annotations: Path, folder: Path, masks: Masks = "yes") -> CocoSet:
    """Read an annotation file and find its images in a folder; no image is opened. Without masks, only boxes are read."""
    content = _read_json(annotations)
    if not folder.is_dir():
        raise ValueError(f"no image folder {folder} for {annotations}; set it with --data")
    categories = _categories(content["categories"], annotations)
    entries, broken = _image_entries(content["images"], folder)
    has_masks = masks == "yes" or (masks == "auto" and any(map(_has_mask, content["annotations"])))
    objects = _objects(content, entries, categories, annotations.name, broken, has_masks)
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
        raise ValueError(f"none of the images in {annotations} is valid and exists in {folder}{first}")
    return CocoSet(annotations.name, images, categories, broken, has_masks)


def _has_mask(annotation: Any) -> bool:
    """Whether an annotation has a mask, valid or not; programs that know only boxes write an empty list."""
    return _get(annotation, "segmentation") not in (None, [])


def _objects(
    content: dict[str, Any],
    images: dict[int, dict[str, Any]],
    categories: dict[int, str],
    file: str,
    broken: list[Broken],
    has_masks: bool,
) -> dict[int, list[dict[str, Any]]]:
    """The valid annotations of each image; the others are added to `broken`, unless their image is already in it."""
    named = {entry["id"] for entry in content["images"] if _is_whole(_get(entry, "id"))}
    found: dict[int, list[dict[str, Any]]] = {key: [] for key in images}
    for number, annotation in enumerate(content["annotations"]):
        image, error = _get(annotation, "image_id"), _annotation_error(annotation, images, categories)
        if error is None and has_masks:
            error = _shape_error(annotation.get("segmentation"), images[image])
        if error is None:
            whole = dict(image_id=int(image), category_id=int(annotation["category_id"]))
            kept = {name: value for name, value in annotation.items() if has_masks or name != "segmentation"}
            found[image].append({"id": number + 1, **kept, **whole})
        elif not _is_whole(image) or image in images or image not in named:
            which = _get(annotation, "id")
            broken.append(Broken(f"{file}, annotation {f'number {number}' if which is None else which}", error))
    return found


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"no annotation file {path}; set its folder with --data.root")
    content = parse_json(read_bytes(path), path)
    missing = [name for name in ("images", "annotations", "categories") if not isinstance(_get(content, name), list)]
    if missing:
        raise ValueError(f"{path} is not in COCO's format: it has no list of {', '.join(missing)}")
    return content


def _get(content: Any, name: str) -> Any:
    return content.get(name) if isinstance(content, dict) else None


def _is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer; some programs write 7.0 for 7. Larger ones do not survive COCO's tools."""
    is_whole = (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    return is_whole and abs(value) <= LARGEST_ID


def _categories(entries: list[Any], path: Path) -> dict[int, str]:
    names: dict[int, str] = {}
    for number, entry in enumerate(entries):
        key = _get(entry, "id")
        if not _is_whole(key):
            raise ValueError(f"{path}, category number {number}: its id is {excerpt(key)}, not an integer")
        name = entry.get("name", str(key))
        if not isinstance(name, str) or len(name.splitlines()) != 1:
            raise ValueError(f"{path}, category {key}: its name is {excerpt(name)}, not a single line of text")
        if key in names or name in names.values():
            raise ValueError(f"{path} has two categories with the {f'id {key}' if key in names else f'name {name!r}'}")
        names[int(key)] = name
    if not names:
        raise ValueError(f"{path} has no categories; each needs a unique id")
    return names


def _image_entries(entries: list[Any], folder: Path) -> tuple[dict[int, dict[str, Any]], list[Broken]]:
    """The valid entries by id, whether or not their images exist, and the broken ones."""
    valid: dict[int, dict[str, Any]] = {}
    broken: list[Broken] = []
    for number, entry in enumerate(entries):
        error = _image_error(entry)
        if error is None and entry["id"] in valid:
            error = f"its id {entry['id']} is also the id of {valid[entry['id']]['file_name']}"
        if error is None:
            valid[int(entry["id"])] = entry
        else:
            broken.append(Broken(str(folder / str(_get(entry, "file_name") or f"image number {number}")), error))
    return valid, broken


def _image_error(entry: Any) -> str | None:
    if not all(_get(entry, key) is not None for key in ("id", "file_name", "width", "height")):
        return "its entry lacks id, file_name, width or height"
    if not isinstance(entry["file_name"], str):
        return f"its file_name is {excerpt(entry['file_name'])}, not text"
    if PurePosixPath(entry["file_name"]).is_absolute() or ".." in PurePosixPath(entry["file_name"]).parts:
        return "its file_name leaves the image folder; write it relative to that folder, or choose another folder"
    if not _is_whole(entry["id"]):
        return f"its id is {excerpt(entry['id'])}, not an integer"
    sides = (entry["width"], entry["height"])
    if not all(_is_whole(side) and 1 <= side <= LARGEST_PX for side in sides):
        return f"its size is invalid: {excerpt(sides[0])}x{excerpt(sides[1])}"
    return None


def _is_there(name: str, present: set[str], folder: Path) -> bool:
    return (folder / name).is_file() if "/" in name else name in present


def _annotation_error(annotation: Any, images: dict[int, dict[str, Any]], categories: dict[int, str]) -> str | None:
    """What is wrong with an annotation but for its mask. An empty box is valid: it is just not used in training."""
    if not isinstance(annotation, dict):
        return f"it is {excerpt(annotation)}, not an object with keys"
    image, category = annotation.get("image_id"), annotation.get("category_id")
    if not _is_whole(image) or image not in images:
        return f"its image {excerpt(image)} is not in the file"
    if not _is_whole(category) or category not in categories:
        return f"its category {excerpt(category)} is not among the {len(categories)} categories of the file"
    if annotation.get("iscrowd", 0) not in (0, 1):
        return f"its iscrowd is {excerpt(annotation['iscrowd'])}, not 0 or 1"
    box = annotation.get("bbox")
    if not _are_numbers(box, BOUND) or len(box) != 4:
        return f"its box is {excerpt(box)}, not x, y, width, height"
    return None


def _are_numbers(values: Any, bound: float) -> TypeGuard[list[float]]:
    """Whether a value is a list of numbers with absolute values up to a bound; NaN is not."""
    return isinstance(values, list) and all(_is_number(v) and -bound <= v <= bound for v in values)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shape_error(shape: Any, image: dict[str, Any]) -> str | None:
    if isinstance(shape, list):
        if not shape:
            return "it has no polygon"
        far = FAR * max(image["width"], image["height"])
        bad = next((p for p in shape if not _are_numbers(p, far) or len(p) < 6 or len(p) % 2), None)
        return None if bad is None else f"its polygon is invalid: {excerpt(bad)}"
    if isinstance(shape, dict):
        return _runs_error(shape, image)
    return "it has no segmentation, and Mask R-CNN needs masks; --detector.masks no uses all boxes, and no masks"


def _runs_error(runs: dict[str, Any], image: dict[str, Any]) -> str | None:
    size, counts = runs.get("size"), runs.get("counts")
    if size != [image["height"], image["width"]] or not all(isinstance(side, int) for side in size):
        return f"its RLE has size {excerpt(size)}, the image is {[image['height'], image['width']]}"
    lengths = decode_counts(counts) if isinstance(counts, str) else counts
    if not isinstance(lengths, list):
        return "its RLE has no counts" if counts is None else f"its RLE is corrupt: {excerpt(counts)}"
    if not all(isinstance(n, int) and n >= 0 for n in lengths) or sum(lengths) != image["height"] * image["width"]:
        return "its RLE counts do not add up to the size of the image"
    return None


def decode_counts(text: str) -> list[int] | None:
    """The run lengths of COCO's compressed RLE text; None if the text is invalid.

    A number is written in groups of five bits, the lowest first, each as a character from "0" on with 32 added if more
    follow; from the third on it is the difference to the number two before. pycocotools accepts any text and reads past its
    end, so text from a file is validated here first.
    """
    lengths: list[int] = []
    number = shift = 0
    for character in text:
        group = ord(character) - 48
        if not 0 <= group < 64:
            return None
        number |= (group & 31) << shift
        shift += 5
        if shift > LONGEST_BITS:
            return None
        if group & 32:
            continue
        if group & 16:
            number -= 1 << shift  # negative
        lengths.append(number + (lengths[-2] if len(lengths) > 2 else 0))
        number = shift = 0
    return lengths if shift == 0 else None


def _to_rle(shape: Any, width: int, height: int) -> Any:
    """A segmentation as pycocotools' compressed RLE."""
    from pycocotools import mask as coco_mask

    if isinstance(shape, list):
        return coco_mask.merge(coco_mask.frPyObjects(shape, height, width))
    return coco_mask.frPyObjects(shape, height, width) if isinstance(shape["counts"], list) else shape


def decode_masks(objects: Sequence[dict[str, Any]], width: int, height: int) -> npt.NDArray[np.uint8]:
    """The masks of objects, (N, H, W)."""
    from pycocotools import mask as coco_mask

    masks = np.zeros((len(objects), height, width), dtype=np.uint8)
    for mask, annotation in zip(masks, objects, strict=True):
        mask[:] = coco_mask.decode(_to_rle(annotation["segmentation"], width, height))
    return masks


def encode_mask(mask: npt.NDArray[Any]) -> dict[str, Any]:
    """A mask as COCO's compressed RLE, with the counts as text for json."""
    from pycocotools import mask as coco_mask

    runs = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    return dict(size=[int(side) for side in runs["size"]], counts=runs["counts"].decode("ascii"))


def area_of(annotation: dict[str, Any], width: int, height: int) -> float:
    """The annotated area of an object, or that of its mask or box: COCO sorts objects into small, medium and large by it."""
    from pycocotools import mask as coco_mask

    given = annotation.get("area")
    if _is_number(given) and 0 <= given <= BOUND * BOUND:
        return given
    if annotation.get("segmentation") is not None:
        return float(coco_mask.area(_to_rle(annotation["segmentation"], width, height)))
    return float(annotation["bbox"][2] * annotation["bbox"][3])


def read_annotated(image: CocoImage) -> Image.Image:
    """The image in the orientation of its annotations: EXIF-transposed, or as stored if only that has the annotated size."""
    with open_image(image.path) as file:
        stored = file.size
        pil_image = decode_image(file, "RGB")
        wanted = (image.width, image.height)
        if pil_image.size != wanted and stored == wanted:
            pil_image = file.convert("RGB")
    if pil_image.size != wanted:
        raise ValueError(
            f"it is {pil_image.size[0]}x{pil_image.size[1]}, but its annotations are for {image.width}x{image.height}"
        )
    return pil_image
