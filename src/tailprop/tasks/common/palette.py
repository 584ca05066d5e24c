"""Colours of classes: as different as possible, also for people who cannot tell red from green.

Colours are compared by their distance in CIELAB, as they look with normal vision, without the cones for red, and without those
for green (Vienot, Brettel and Mollon 1999).
"""

from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tailprop.tasks.common.look import COLORS

__all__ = ["as_seen", "class_color"]

Array = npt.NDArray[np.float64]
_COUNT: Final = 160  # further classes repeat them
_STEPS: Final = 13  # of each channel in the grid that colours are chosen from
_LEAST_LIGHT, _MOST_LIGHT = 25.0, 92.0  # CIELAB lightness: neither black, which is an edge, nor white, which is paper

# Linear RGB as seen without the cones for long and for middle wavelengths.
_PROTAN: Final = ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0))
_DEUTAN: Final = ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0))
_TO_XYZ: Final = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))


def class_color(number: int) -> tuple[int, int, int]:
    """The colour of a class, RGB: the first ones are those of every figure, each further one differs most from all before."""
    r, g, b = _palette()[number % _COUNT].tolist()
    return r, g, b


def as_seen(colors: npt.NDArray[Any]) -> Array:
    """RGB from 0 to 255, (N, 3), in CIELAB as each of the three kinds of vision sees it, (3, N, 3)."""
    share = np.asarray(colors, dtype=np.float64) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    seen = [linear, *(np.clip(linear @ np.array(matrix).T, 0, 1) for matrix in (_PROTAN, _DEUTAN))]
    return np.stack([_lab(part) for part in seen])


def _lab(linear: Array) -> Array:
    xyz = linear @ np.array(_TO_XYZ).T / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)


@cache
def _palette() -> npt.NDArray[np.uint8]:
    """Farthest-point sampling of a grid, from the colours of the figures on."""
    steps = np.linspace(0, 255, _STEPS).round()
    grid = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
    seen = as_seen(grid)
    usable = (seen[0, :, 0] > _LEAST_LIGHT) & (seen[0, :, 0] < _MOST_LIGHT)
    grid, seen = grid[usable], seen[:, usable]
    first = [color for color in COLORS if color != "#000000"]
    chosen = [np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)], dtype=np.float64) for color in first]
    nearest = np.min([_distances(seen, color) for color in chosen], axis=0)
    while len(chosen) < _COUNT:
        chosen.append(grid[int(np.argmax(nearest))])
        nearest = np.minimum(nearest, _distances(seen, chosen[-1]))
    return np.array(chosen).astype(np.uint8)


def _distances(seen: Array, color: Array) -> Array:
    """The distance of a colour to others for the vision that tells them apart least."""
    return np.linalg.norm(seen - as_seen(color[None]), axis=-1).min(axis=0)
