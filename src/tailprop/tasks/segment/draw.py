"""Draw label maps as tinted images with legends, and save them as PNGs of class indices."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from tailprop.data.formats.colors import ColorTable
from tailprop.data.formats.label_maps import IGNORE
from tailprop.data.images import open_image, save_image
from tailprop.tasks.common.fonts import drawable, load_font
from tailprop.tasks.common.palette import class_color

__all__ = ["draw_labels", "legend", "save_labels", "stack_legend", "with_legend"]

TINT: Final = 0.6  # opacity of a class's colour
LEAST_LINED_PX: Final = 64  # smaller side of an image whose classes are separated by lines
LEAST_SHARE: Final = 5e-4  # of a class in a legend; less would be 0.0 %
MOST_NAMED: Final = 24  # maximum number of classes in a legend
_PALETTE: Final = 256  # colours of a palette
MOST_PX: Final = 16_384  # maximum height of an enlarged image; JPEG allows 65,500

Labels = npt.NDArray[np.signedinteger[Any]]


def draw_labels(image: Image.Image, labels: Labels) -> Image.Image:
    """An image in gray, tinted with the colours of its classes, with dark edges between them, so that touching classes differ.

    Pixels without a label are unchanged. Labels: (H, W)
    """
    pixels = np.asarray(image.convert("RGB")).astype(np.float32)
    gray = np.asarray(image.convert("L")).astype(np.float32)[
        ..., None
    ]  # colours of the image would change those of the classes
    known = labels != IGNORE
    colours = np.array([class_color(i) for i in range(max(0, int(labels.max())) + 1)], dtype=np.float32)
    pixels[known] = (1 - TINT) * gray[known] + TINT * colours[labels[known]]
    pixels[known & _edges(labels)] *= 0.25
    return Image.fromarray(pixels.round().astype(np.uint8))


def _edges(labels: Labels) -> npt.NDArray[np.bool_]:
    """The pixels whose right or lower neighbour has another label, in an image large enough for lines."""
    edges = np.zeros(labels.shape, dtype=bool)
    if min(labels.shape) >= LEAST_LINED_PX:
        edges[:, :-1] |= labels[:, :-1] != labels[:, 1:]
        edges[:-1] |= labels[:-1] != labels[1:]
    return edges


def legend(counts: npt.NDArray[np.int64], names: Sequence[str], width: int) -> Image.Image:
    """Colours and names of the classes, most frequent first, wrapped to the width; without those that would have 0.0 %."""
    total = max(1, counts.sum())
    order = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i] / total >= LEAST_SHARE]
    named = order[:MOST_NAMED]
    shown = drawable(f"{names[i]} {100 * counts[i] / total:.1f} %" for i in named)
    texts: list[tuple[Any, str]] = [(class_color(i), text) for i, text in zip(named, shown, strict=True)]
    font = load_font(size := int(np.clip(width / 40, 11, 28)), "".join(sorted(set("".join(text for _, text in texts)))))
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


def save_labels(path: Path, labels: Labels, first_label: int, colors: ColorTable | None = None) -> None:
    """Save a label map with the label values or the colours of the training data, so that it can be read like that data."""
    if colors is not None:
        save_image(path, _coloured(labels, colors))
        return
    numbers = np.where(labels == IGNORE, 0, labels + first_label)
    save_image(path, Image.fromarray(numbers.astype(np.uint8 if numbers.max(initial=0) < 256 else np.uint16)))


def _coloured(labels: Labels, colors: ColorTable) -> Image.Image:
    """A palette whose numbers are the classes, so that other programs may read either; in RGB if there are too many."""
    table = np.array(colors.colors, dtype=np.uint8)
    if len(table) > _PALETTE:
        return Image.fromarray(table[labels])
    image = Image.fromarray(labels.astype(np.uint8)).convert("P")  # keeps the numbers
    image.putpalette(table.tobytes())
    return image
