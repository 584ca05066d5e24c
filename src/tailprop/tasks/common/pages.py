"""Contact sheets: several images on one page, with captions."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tailprop.data.images import save_image
from tailprop.utils.files import make_folder

__all__ = ["draw_page", "load_font", "with_caption"]

GAP_PX = 8  # between the images of a page
_CAPTION = 14  # font size in pixels


@lru_cache
def load_font(size: int) -> ImageFont.FreeTypeFont:
    """Matplotlib's font, which covers Greek, Cyrillic and Arabic; Pillow's default covers little beyond Latin."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), size)


def with_caption(image: Image.Image, lines: Sequence[str], width_px: int = 240) -> Image.Image:
    """Resize an image to a width and add lines of text below it; long lines are truncated."""
    font, height = load_font(_CAPTION), max(1, min(2 * width_px, round(image.height * width_px / image.width)))
    page = Image.new("RGB", (width_px, height + (_CAPTION + 5) * len(lines)), "white")
    page.paste(image.convert("RGB").resize((width_px, height)), (0, 0))
    pen = ImageDraw.Draw(page)
    for number, line in enumerate(lines):
        while line and font.getlength(line) > width_px:
            line = line[:-2] + "\u2026" if len(line) > 2 else ""
        pen.text((0, height + 2 + (_CAPTION + 5) * number), line, fill="black", font=font)
    return page


def draw_page(images: Sequence[Image.Image], path: Path, columns: int = 4, width_px: int = 320) -> None:
    """Draw images in rows, each resized to the column width, or to twice that height if it would be higher."""
    scales = [min(width_px / p.width, 2 * width_px / p.height) for p in images]
    sizes = [(max(1, round(p.width * s)), max(1, round(p.height * s))) for p, s in zip(images, scales, strict=True)]
    scaled = [p.resize(size) for p, size in zip(images, sizes, strict=True)]
    rows = [scaled[i : i + columns] for i in range(0, len(scaled), columns)]
    heights = [max(p.height for p in row) for row in rows]
    page = Image.new("RGB", (columns * (width_px + GAP_PX) - GAP_PX, sum(heights) + GAP_PX * (len(rows) - 1)), "white")
    top = 0
    for row, height in zip(rows, heights, strict=True):
        for column, image in enumerate(row):
            page.paste(image, (column * (width_px + GAP_PX), top))
        top += height + GAP_PX
    make_folder(path.parent)
    save_image(path, page, quality=88)
