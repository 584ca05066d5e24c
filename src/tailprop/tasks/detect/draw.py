"""Draw objects on images: boxes, tinted masks, class names and scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from tailprop.data.formats.coco import CocoImage, decode_masks
from tailprop.tasks.common.fonts import drawable, load_font
from tailprop.tasks.common.palette import class_color

__all__ = ["Drawn", "draw_objects", "objects_of", "truth_of"]

ENLARGED_PX = 4096  # maximum longer side of an enlarged image
JPEG_PX = 65500  # maximum side of a JPEG
READABLE_PX, MOST_TEXT_PX = 11, 200  # font size where a drawing is shown, and in the drawing
TINT = 0.45  # opacity of a mask's colour


@dataclass(frozen=True)
class Drawn:
    """An object to draw."""

    box: Sequence[float]  # x, y, width, height
    text: str
    colour: int  # colour index, the same for all objects of a class
    mask: npt.NDArray[np.uint8] | None = None  # (H, W)


def objects_of(entries: Sequence[dict[str, Any]], names: dict[int, str], least_score: float = 0.5) -> list[Drawn]:
    """The objects of a results file, sorted so that those with the highest score are drawn on top."""
    from pycocotools import mask as coco_mask

    drawn = []
    for entry in sorted(entries, key=lambda e: e["score"]):
        if entry["score"] >= least_score:
            mask = coco_mask.decode(entry["segmentation"]) if "segmentation" in entry else None
            category = entry["category_id"]
            drawn.append(Drawn(entry["bbox"], f"{names[category]} {entry['score']:.2f}", category, mask))
    return drawn


def truth_of(image: CocoImage, names: dict[int, str]) -> list[Drawn]:
    """The annotated objects of an image, sorted so that small ones are drawn on top."""
    objects = sorted(image.objects, key=lambda a: -a["bbox"][2] * a["bbox"][3])
    has_masks = all("segmentation" in a for a in objects)
    masks = decode_masks(objects, image.width, image.height) if has_masks else [None] * len(objects)
    return [Drawn(a["bbox"], names[a["category_id"]], a["category_id"], m) for a, m in zip(objects, masks, strict=True)]


def draw_objects(image: Image.Image, objects: Sequence[Drawn], least_px: int = 384, shown_px: int | None = None) -> Image.Image:
    """A copy of an image with the objects drawn on it. A small image is enlarged, or the text would hide its objects.

    With `shown_px`, the width at which the copy will be shown, the text is large enough to be read there.
    """
    scale = _scale(image.size, least_px)
    pixels = np.array(image.convert("RGB")).astype(np.float32)
    for item in objects:
        if item.mask is not None:
            inside, colour = item.mask.astype(bool), np.array(class_color(item.colour), dtype=np.float32)
            pixels[inside] = (1 - TINT) * pixels[inside] + TINT * colour
            pixels[_edge(inside)] = colour  # separates neighbouring objects of one class, whose colours are equal
    tinted = Image.fromarray(pixels.round().astype(np.uint8))
    drawn = tinted.resize((max(1, round(scale * tinted.width)), max(1, round(scale * tinted.height))), Image.Resampling.NEAREST)
    pen, line = ImageDraw.Draw(drawn), max(1, round(min(drawn.size) / 250))
    text_px = max(9, round(min(drawn.size) / 40), round(READABLE_PX * drawn.width / shown_px) if shown_px else 0)
    for item, text in zip(objects, drawable(item.text for item in objects), strict=True):
        x, y, w, h = (scale * value for value in item.box)
        pen.rectangle((x, y, x + w, y + h), outline=class_color(item.colour), width=line)
        _write_text(pen, text, class_color(item.colour), (x, y), drawn.size, load_font(min(text_px, MOST_TEXT_PX), text))
    return drawn


def _edge(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The pixels of a mask that have a neighbour outside the mask; the border of the image is not an edge."""
    wide = np.pad(mask, 1, mode="edge")
    return mask & ~(wide[:-2, 1:-1] & wide[2:, 1:-1] & wide[1:-1, :-2] & wide[1:-1, 2:])


def _scale(size: tuple[int, int], least_px: int) -> float:
    """Scale factor of the drawing: an integer, limited by the longer side, or below 1 if the image is too large for JPEG."""
    if max(size) > JPEG_PX:
        return JPEG_PX / max(size)
    return max(1, min(round(least_px / min(size)), ENLARGED_PX // max(size)))


def _write_text(
    pen: ImageDraw.ImageDraw,
    text: str,
    colour: tuple[int, int, int],
    corner: tuple[float, float],
    size: tuple[int, int],
    font: Any,
) -> None:
    """Write the text above the box, or inside it if there is no space above."""
    right, bottom = pen.textbbox((0, 0), text, font=font)[2:]
    x = min(max(0, corner[0]), max(0, size[0] - right - 2))
    y = corner[1] - bottom - 2
    y = y if y >= 0 else max(0, corner[1])
    r, g, b = colour
    pen.rectangle((x, y, x + right + 2, y + bottom + 2), fill=colour)
    pen.text((x + 1, y + 1), text, fill=(0, 0, 0) if 0.3 * r + 0.59 * g + 0.11 * b > 110 else (255, 255, 255), font=font)
