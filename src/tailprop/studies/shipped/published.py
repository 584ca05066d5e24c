"""Published numbers, for comparison: DnCNN (Zhang et al. 2017, tables II, III and VI), and BM3D as that paper prints it.

The blind networks are DnCNN-B for noise and DnCNN-3 for JPEG. Set12 is our test set as well. The others (CBSD68, Classic5,
LIVE1) are not at hand, so there only the gain over the input can be compared, and on other images.
"""

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["PUBLISHED", "Published", "noise_psnr"]


@dataclass(frozen=True)
class Published:
    test_set: str
    degradation: str
    level: int
    method: str
    psnr: float  # dB
    input_psnr: float  # dB


def noise_psnr(sigma: float) -> float:
    """PSNR of an image with noise, neither rounded nor clipped."""
    return 20 * math.log10(255 / sigma)


def _noise(test_set: str, method: str, values: dict[int, float]) -> tuple[Published, ...]:
    return tuple(Published(test_set, "noise", sigma, method, psnr, noise_psnr(sigma)) for sigma, psnr in values.items())


def _jpeg(test_set: str, method: str, values: dict[int, tuple[float, float]]) -> tuple[Published, ...]:
    return tuple(Published(test_set, "jpeg", quality, method, psnr, before) for quality, (before, psnr) in values.items())


PUBLISHED: Final = (
    *_noise("Set12", "BM3D", {15: 32.372, 25: 29.969, 50: 26.722}),
    *_noise("Set12", "DnCNN-S", {15: 32.859, 25: 30.436, 50: 27.178}),
    *_noise("Set12", "DnCNN-B", {15: 32.680, 25: 30.362, 50: 27.206}),
    *_noise("CBSD68", "CDnCNN-B", {15: 33.89, 25: 31.23, 50: 27.92}),
    *_jpeg("Classic5", "DnCNN-3", {10: (27.82, 29.40), 20: (30.12, 31.63), 30: (31.48, 32.91), 40: (32.43, 33.77)}),
    *_jpeg("LIVE1", "DnCNN-3", {10: (27.77, 29.19), 20: (30.07, 31.59), 30: (31.41, 32.98), 40: (32.35, 33.96)}),
)
