"""Figures of degraded, restored and clean images, each with an enlarged detail."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tailprop.tasks.common.look import COLORS, look, new_figure, plain, save_figure, set_title
from tailprop.tasks.restore.metrics import Restored

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_restored", "richest_detail"]

HEADINGS = ("restored", "clean")
DETAIL = 5  # the detail is this part of the image, in each direction
Pixels = NDArray[np.uint8]


@look()
def draw_restored(
    images: Sequence[Restored], path: Path, most_px: int = 256, title: str = "", before: str = "degraded"
) -> None:
    """Draw degraded, restored and clean side by side, one row per image, and the same detail of each.

    Large images are cropped, but PSNR is of the whole. `before` is the heading of the degraded images.
    """
    headings = (before, *HEADINGS)
    figure = new_figure(12.0, 0.6 + 2.25 * len(images))
    for number, (row, item) in enumerate(zip(figure.subplots(len(images), 6, squeeze=False), images, strict=True)):
        versions = [_middle(image, most_px) for image in (item.degraded, item.restored, item.clean)]
        decibels = (f"{item.degraded_psnr:.2f} dB", f"{item.psnr:.2f} dB", plain(_short(item.name)))
        part = richest_detail(versions[2])
        for place, (image, text) in enumerate(zip(versions, decibels, strict=True)):
            _show(row[place], image, f"{headings[place]}\n{text}" if number == 0 else text)
            _frame(row[place], part)
            _show(row[3 + place], image[part], f"{headings[place]}\ndetail" if number == 0 else "")
    if title:
        set_title(figure, title)
    save_figure(figure, path)


def richest_detail(image: Pixels) -> tuple[slice, slice]:
    """The part of an image with the strongest edges, 1 / DETAIL of each side."""
    gray = image.astype(np.float64).mean(2)
    energy = np.abs(np.diff(gray, axis=0, append=gray[-1:])) + np.abs(np.diff(gray, axis=1, append=gray[:, -1:]))
    h, w = (max(1, round(side / DETAIL)) for side in gray.shape)
    total = np.pad(energy.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    sums = total[h:, w:] - total[:-h, w:] - total[h:, :-w] + total[:-h, :-w]  # of every part of that size
    top, left = np.unravel_index(int(sums.argmax()), sums.shape)
    return slice(int(top), int(top) + h), slice(int(left), int(left) + w)


def _middle(image: Pixels, most_px: int) -> Pixels:
    h, w = image.shape[:2]
    top, left = max(0, h - most_px) // 2, max(0, w - most_px) // 2
    return image[top : top + most_px, left : left + most_px]


def _show(axes: "Axes", image: Pixels, title: str) -> None:
    gray = image.shape[2] == 1
    axes.imshow(image[..., 0] if gray else image, cmap="gray" if gray else None, vmin=0, vmax=255, interpolation="nearest")
    axes.set_title(title, fontsize=9)
    axes.axis("off")


def _frame(axes: "Axes", part: tuple[slice, slice]) -> None:
    from matplotlib.patches import Rectangle

    rows, columns = part
    size: Any = (columns.stop - columns.start, rows.stop - rows.start)
    axes.add_patch(Rectangle((columns.start, rows.start), *size, fill=False, edgecolor=COLORS[4], linewidth=1.2))


def _short(name: str, most: int = 24) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}\u2026"
