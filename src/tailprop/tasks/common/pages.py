"""Contact sheets: several images on one page, with captions."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from tailprop.data.images import save_image
from tailprop.tasks.common.fonts import drawable, load_font
from tailprop.utils.files import make_folder

__all__ = ["draw_page", "load_font", "with_caption"]

GAP_PX = 8  # between the images of a page
_CAPTION = 14  # font size in pixels
_TITLE, _HEADING = 30, 26  # height of a title and of headings


def with_caption(image: Image.Image, lines: Sequence[str], width_px: int = 240) -> Image.Image:
    """Resize an image to a width and add lines of text below it; long lines are truncated."""
    lines = drawable(lines)
    font, height = load_font(_CAPTION, "".join(lines)), max(1, min(2 * width_px, round(image.height * width_px / image.width)))
    page = Image.new("RGB", (width_px, height + (_CAPTION + 5) * len(lines)), "white")
    page.paste(image.convert("RGB").resize((width_px, height)), (0, 0))
    pen = ImageDraw.Draw(page)
    for number, line in enumerate(lines):
        while line and font.getlength(line) > width_px:
            line = line[:-2] + "\u2026" if len(line) > 2 else ""
        pen.text((0, height + 2 + (_CAPTION + 5) * number), line, fill="black", font=font)
    return page


def draw_page(
    images: Sequence[Image.Image],
    path: Path,
    columns: int = 4,
    width_px: int = 320,
    headings: Sequence[str] = (),
    title: str = "",
) -> None:
    """Draw images in rows, each resized to the column width, or to twice that height if it would be higher.

    `headings` stand above the columns; if they are fewer than the columns, they are repeated.
    """
    scales = [min(width_px / p.width, 2 * width_px / p.height) for p in images]
    sizes = [(max(1, round(p.width * s)), max(1, round(p.height * s))) for p, s in zip(images, scales, strict=True)]
    scaled = [p.resize(size) for p, size in zip(images, sizes, strict=True)]
    rows = [scaled[i : i + columns] for i in range(0, len(scaled), columns)]
    heights = [max(p.height for p in row) for row in rows]
    top = _TITLE * bool(title) + _HEADING * bool(headings)
    size = (columns * (width_px + GAP_PX) - GAP_PX, top + sum(heights) + GAP_PX * (len(rows) - 1))
    page = Image.new("RGB", size, "white")
    _write_top(page, title, [headings[i % len(headings)] for i in range(columns)] if headings else [], width_px)
    for row, height in zip(rows, heights, strict=True):
        for column, image in enumerate(row):
            page.paste(image, (column * (width_px + GAP_PX), top))
        top += height + GAP_PX
    make_folder(path.parent)
    save_image(path, page, quality=88)


def _write_top(page: Image.Image, title: str, headings: Sequence[str], width_px: int) -> None:
    pen = ImageDraw.Draw(page)
    title, *headings = drawable([title, *headings])
    if title:
        pen.text((2, 4), title, fill="black", font=load_font(_fitting(title, 17, page.width - 4), title))
    for column, heading in enumerate(headings):
        font = load_font(_fitting(heading, 16, width_px), heading)
        at = column * (width_px + GAP_PX) + (width_px - font.getlength(heading)) / 2
        pen.text((at, _TITLE * bool(title) + 3), heading, fill="black", font=font)


def _fitting(text: str, most: int, width_px: int) -> int:
    """The largest font size, from 8 to `most`, at which a text fits."""
    sizes = range(most, 8, -1)
    return next((size for size in sizes if load_font(size, text).getlength(text) <= width_px), 8)
