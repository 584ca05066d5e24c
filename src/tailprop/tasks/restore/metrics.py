"""PSNR, SSIM and PSNR-B between restored and clean 8-bit images, as in SwinIR.

Shapes: uint8 arrays (H, W, C); luma is float, because SwinIR does not round it.
"""

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.raster import STUDIO_LUMA

__all__ = ["Protocol", "Restored", "Score", "Scores", "mean_scores", "psnr", "psnr_b", "ssim", "to_bytes"]

_BLOCK: Final = 8  # side of a JPEG block
SSIM_LEAST_PX: Final = 11  # side of its window

Pixels8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Protocol:
    """What is compared: all of the image and its channels, or, as for super-resolution, the luma without a border."""

    border_px: int = 0
    on_luma: bool = False  # Y of YCbCr in studio range; a gray image is its luma

    def part(self, image: Pixels8) -> npt.NDArray[Any]:
        h, w, channels = image.shape
        inner = image[self.border_px : h - self.border_px, self.border_px : w - self.border_px]
        return inner / 255 @ np.array(STUDIO_LUMA)[:, None] + 16 if self.on_luma and channels == 3 else inner


@dataclass(frozen=True)
class Restored:
    """An image degraded, restored and clean, 8 bits each, (H, W, C)."""

    name: str
    degraded: Pixels8
    restored: Pixels8
    clean: Pixels8
    degraded_psnr: float  # dB, of the network's input, which is not rounded to 8 bits; of the enlarged one if it is smaller
    psnr: float  # dB, of the restored image


def psnr(restored: npt.NDArray[Any], clean: npt.NDArray[Any]) -> float:
    """Peak signal-to-noise ratio in dB; infinite for equal images."""
    return _decibels(_mean_square(restored, clean))


def ssim(restored: npt.NDArray[Any], clean: npt.NDArray[Any]) -> float:
    """Structural similarity with Wang's window (11 x 11, sigma 1.5), averaged over channels, by scikit-image."""
    from skimage.metrics import structural_similarity

    if min(clean.shape[:2]) < SSIM_LEAST_PX:
        raise ValueError(f"SSIM needs {SSIM_LEAST_PX}x{SSIM_LEAST_PX} px, the image has {clean.shape[0]}x{clean.shape[1]}")
    settings: dict[str, Any] = dict(gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=255)
    return float(structural_similarity(restored, clean, channel_axis=-1, **settings))


def psnr_b(restored: npt.NDArray[Any], clean: npt.NDArray[Any]) -> float:
    """PSNR with a penalty for remaining JPEG block edges (Yim & Bovik 2011), averaged over channels."""
    channels = [
        _decibels(_mean_square(a, b) + _blocking(a.astype(np.float64)))
        for a, b in zip(np.moveaxis(restored, -1, 0), np.moveaxis(clean, -1, 0), strict=True)
    ]
    return float(np.mean(channels))


def _decibels(mean_square: float) -> float:
    return float("inf") if mean_square == 0 else float(10 * np.log10(255**2 / mean_square))


def _mean_square(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    return float(np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))


def _blocking(x: npt.NDArray[np.float64]) -> float:
    """By how much squared differences across block edges exceed the others, (H, W) -> a number, at least 0."""
    h, w = x.shape
    across, down = np.diff(x, axis=1) ** 2, np.diff(x, axis=0) ** 2
    at_edges = across[:, _BLOCK - 1 :: _BLOCK].sum() + down[_BLOCK - 1 :: _BLOCK].sum()
    elsewhere = across.sum() + down.sum() - at_edges
    num_edges = h * (w // _BLOCK - 1) + w * (h // _BLOCK - 1)  # as published: one less if a side is not a multiple of 8
    num_others = h * (w - 1) + w * (h - 1) - num_edges
    if num_edges <= 0 or num_others <= 0:
        return 0.0
    excess = at_edges / num_edges - elsewhere / num_others
    return float(max(0.0, excess) * np.log2(_BLOCK) / np.log2(min(h, w)))


@dataclass(frozen=True)
class Score:
    """The scores of one image."""

    name: str
    psnr: float  # dB
    ssim: float
    psnr_b: float  # dB
    degraded_psnr: float  # dB, before restoration
    degraded_ssim: float
    degraded_psnr_b: float


@dataclass(frozen=True)
class Scores:
    """The scores of all images, sorted by name."""

    rows: tuple[Score, ...]
    broken: tuple[Broken, ...] = ()

    def mean(self, name: str) -> float:
        return float(np.mean([getattr(row, name) for row in self.rows]))


def measure(image: npt.NDArray[Any], clean: npt.NDArray[Any]) -> tuple[float, float, float]:
    return psnr(image, clean), ssim(image, clean), psnr_b(image, clean)


def mean_scores(scores: Scores) -> dict[str, float]:
    return {f.name: scores.mean(f.name) for f in fields(Score) if f.name != "name"}


def to_bytes(values: Tensor) -> Pixels8:
    """Clip and round to 8 bits, (C, H, W) -> (H, W, C)."""
    return np.asarray((values.float().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())
