"""Figures of degraded, restored and clean images."""

from collections.abc import Sequence
from pathlib import Path

from tailprop.tasks.common.figures import new_figure, save_figure
from tailprop.tasks.restore.metrics import Restored, psnr

__all__ = ["draw_restored"]


def draw_restored(images: Sequence[Restored], path: Path, most_px: int = 256) -> None:
    """Draw degraded, restored and clean side by side, one row per image. Large images are cropped, but PSNR is of the whole."""
    figure = new_figure(8.1, 2.95 * len(images))
    for row, item in zip(figure.subplots(len(images), 3, squeeze=False), images, strict=True):
        titles = (
            f"{item.name}: {item.degraded_psnr:.2f} dB",
            f"restored: {psnr(item.restored, item.clean):.2f} dB",
            "clean",
        )
        for axes, image, title in zip(row, (item.degraded, item.restored, item.clean), titles, strict=True):
            h, w = image.shape[:2]
            top, left = max(0, h - most_px) // 2, max(0, w - most_px) // 2
            middle = image[top : top + most_px, left : left + most_px]
            gray = middle.shape[2] == 1
            axes.imshow(middle[..., 0] if gray else middle, cmap="gray" if gray else None, vmin=0, vmax=255)
            axes.set_title(title, fontsize=9)
            axes.axis("off")
    save_figure(figure, path)
