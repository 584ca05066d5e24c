"""Draw label maps as tinted images with legends, and save them as PNGs of class indices."""

import colorsys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from tailprop.data.formats.label_maps import IGNORE
from tailprop.data.images import open_image, save_image

__all__ = ["class_color", "draw_labels", "legend", "save_labels", "stack_legend", "with_legend"]

TINT: Final = 0.6  # opacity of a class's colour
MOST_NAMED: Final = 24  # maximum number of classes in a legend
MOST_PX: Final = 16_384  # maximum height of an enlarged image; JPEG allows 65,500

Labels = npt.NDArray[np.signedinteger[Any]]


def class_color(number: int) -> tuple[int, int, int]:
    """A colour for each class index: hues are a golden angle apart, saturation and brightness have their own step sizes.

    The step sizes were found by a search that maximises the distance between 150 colours (at least 36 in RGB).
    """
    hue, saturation, value = ((number * step + 0.1) % 1 for step in (0.618034, 0.555, 0.669))
    r, g, b = colorsys.hsv_to_rgb(hue, 0.4 + 0.6 * saturation, 0.4 + 0.6 * value)
    return round(255 * r), round(255 * g), round(255 * b)


def draw_labels(image: Image.Image, labels: Labels) -> Image.Image:
    """An image tinted with the colours of its classes; pixels without a label are unchanged. Labels: (H, W)"""
    pixels = np.asarray(image.convert("RGB")).astype(np.float32)
    known = labels != IGNORE
    colours = np.array([class_color(i) for i in range(max(0, int(labels.max())) + 1)], dtype=np.float32)
    pixels[known] = (1 - TINT) * pixels[known] + TINT * colours[labels[known]]
    return Image.fromarray(pixels.round().astype(np.uint8))


def legend(counts: npt.NDArray[np.int64], names: Sequence[str], width: int) -> Image.Image:
    """Colours and names of the classes that have pixels, most frequent first, wrapped to the width."""
    font = ImageFont.load_default(size=(size := int(np.clip(width / 40, 11, 28))))
    order = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i] > 0]
    texts = [(class_color(i), f"{names[i]} {100 * counts[i] / counts.sum():.1f} %") for i in order[:MOST_NAMED]]
    if len(order) > MOST_NAMED:
        texts.append(((255, 255, 255), f"and {len(order) - MOST_NAMED} more"))
    positions, right, bottom = _lay_out(texts, font, size, width)
    image = Image.new("RGB", (max(width, right), bottom), "white")
    pen = ImageDraw.Draw(image)
    for (x, y), (colour, text) in zip(positions, texts, strict=True):
        pen.rectangle((x, y + 2, x + size, y + size + 2), fill=colour, outline=(128, 128, 128))
        pen.text((x + size + 4, y), text, fill=(0, 0, 0), font=font)
    return image


def _lay_out(texts: Sequence[tuple[Any, str]], font: Any, size: int, width: int) -> tuple[list[tuple[int, int]], int, int]:
    """The position of each entry, and the total width and height."""
    x, y, right, positions = 4, 4, 0, []
    for _, text in texts:
        length = size + 4 + int(font.getlength(text)) + size
        if x > 4 and x + length > width:
            x, y = 4, y + size + 8
        positions.append((x, y))
        x += length
        right = max(right, x)
    return positions, right, y + size + 8


def with_legend(image: Image.Image, counts: npt.NDArray[np.int64], names: Sequence[str], least_px: int = 384) -> Image.Image:
    """An image with a legend below it. A small image is enlarged, or the text would be larger than its objects."""
    scale = max(1, min(round(least_px / image.width), MOST_PX // image.height))
    image = image.resize((scale * image.width, scale * image.height), Image.Resampling.NEAREST)
    below = legend(counts, names, image.width)
    page = Image.new("RGB", (max(image.width, below.width), image.height + below.height), "white")
    page.paste(image, (0, 0))
    page.paste(below, (0, image.height))
    return page


def stack_legend(path: Path, counts: npt.NDArray[np.int64], names: Sequence[str]) -> None:
    """Add a legend below the image in a file."""
    with open_image(path) as image:
        page = with_legend(image.convert("RGB"), counts, names)
    save_image(path, page, quality=88)


def save_labels(path: Path, labels: Labels, first_label: int) -> None:
    """Save a label map with the label values of the training data, so that it can be read like that data."""
    numbers = np.where(labels == IGNORE, 0, labels + first_label)
    save_image(path, Image.fromarray(numbers.astype(np.uint8 if numbers.max(initial=0) < 256 else np.uint16)))
