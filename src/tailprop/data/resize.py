"""Sizes of resized images."""

__all__ = ["fit_within"]


def fit_within(h: int, w: int, short_px: float, long_px: float) -> tuple[int, int]:
    """Height and width with the shorter side at short_px, or the longer at long_px if that is smaller; no side is 0.

    Rounded to the nearest integer, halves up, as in mmdetection and detectron2, and from one division: with torchvision's FP32
    scale every second image would get a side of 799 or 1332.
    """
    by, over = (short_px, min(h, w)) if short_px * max(h, w) <= long_px * min(h, w) else (long_px, max(h, w))
    return max(1, int(h * by / over + 0.5)), max(1, int(w * by / over + 0.5))
