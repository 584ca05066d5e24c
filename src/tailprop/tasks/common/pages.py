"""Several images on one page."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

__all__ = ["draw_page"]

GAP_PX = 8  # between the pictures of a page


def draw_page(pictures: Sequence[Image.Image], path: Path, columns: int = 4, width_px: int = 320) -> None:
    """Pictures in rows, each as wide as its column, or twice as high as that if it would be higher."""
    scales = [min(width_px / p.width, 2 * width_px / p.height) for p in pictures]
    sizes = [(max(1, round(p.width * s)), max(1, round(p.height * s))) for p, s in zip(pictures, scales, strict=True)]
    scaled = [p.resize(size) for p, size in zip(pictures, sizes, strict=True)]
    rows = [scaled[i : i + columns] for i in range(0, len(scaled), columns)]
    heights = [max(p.height for p in row) for row in rows]
    page = Image.new("RGB", (columns * (width_px + GAP_PX) - GAP_PX, sum(heights) + GAP_PX * (len(rows) - 1)), "white")
    top = 0
    for row, height in zip(rows, heights, strict=True):
        for column, picture in enumerate(row):
            page.paste(picture, (column * (width_px + GAP_PX), top))
        top += height + GAP_PX
    page.save(path, quality=88)
