"""Generated scenes of shapes with exact masks, for tests, demos and small training runs in the formats of real datasets.

A scene is a textured background with a few textured shapes that may occlude each other, and sometimes a crowd of tiny ones.
Shapes are drawn without anti-aliasing, so the visible mask of each is exact. A scene is a pure function of (seed, index);
`write.py` writes them as COCO, ADE20K and parquet.

Shapes: H = W = side of the image in pixels. Coordinates u, v of a shape run from -1 to 1 over its extent.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tailprop.utils.validation import check_at_least

__all__ = ["SHAPES", "Instance", "Scene", "SceneConfig", "make_scene"]

Floats = npt.NDArray[np.floating[Any]]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

LEAST_VISIBLE: Final = 0.35  # of a shape's area; a placement that would occlude more of another shape is rejected
TRIES: Final = 12  # placements tried before a shape is skipped


@dataclass(frozen=True)
class SceneConfig:
    """Settings of generated scenes."""

    size_px: int = 128
    """Side of the images in pixels."""
    objects: tuple[int, int] = (2, 7)
    """Minimum and maximum number of shapes in a scene."""
    extent: tuple[float, float] = (0.1, 0.5)
    """Smallest and largest diameter of a shape as a fraction of the side of the image."""
    crowd: float = 0.05
    """Probability of a crowd of tiny shapes, annotated with iscrowd."""
    seed: int = 0
    """Seed of the generated scenes."""

    def check(self) -> None:
        check_at_least("scenes.size_px", self.size_px, 32)
        check_at_least("scenes.seed", self.seed, 0)
        if not 0 <= self.objects[0] <= self.objects[1]:
            raise ValueError(f"scenes.objects must be the minimum and maximum number of shapes, got {self.objects}")
        if not 0 < self.extent[0] <= self.extent[1] <= 1:
            raise ValueError(f"scenes.extent must be two increasing values in (0, 1], got {self.extent}")
        if not 0 <= self.crowd <= 1:
            raise ValueError(f"scenes.crowd must be between 0 and 1, got {self.crowd}")


@dataclass
class Instance:
    """A shape in a scene, or a crowd of them."""

    label: int  # index into SHAPES
    mask: Bools  # its visible pixels, (H, W)
    area: int  # number of pixels without occlusion
    is_crowd: bool = False


@dataclass
class Scene:
    image: Bytes  # (H, W, 3)
    instances: list[Instance]

    def labels(self) -> Bytes:
        """The label map, (H, W): 0 in a crowd (ignored), 1 for the background, 2 and above for the shapes."""
        classes = np.ones(self.image.shape[:2], dtype=np.uint8)
        for instance in self.instances:
            classes[instance.mask] = 0 if instance.is_crowd else instance.label + 2
        return classes


def _polygon(u: Floats, v: Floats, corners: int, inner: float) -> Bools:
    """A regular polygon (inner = 1) or a star whose notches reach `inner` of its radius."""
    sector = math.pi / corners
    angle = np.abs((np.arctan2(u, -v) + sector) % (2 * sector) - sector)  # from the nearest tip, 0 to sector
    if inner == 1:
        return np.hypot(u, v) * np.cos(sector - angle) <= math.cos(sector)
    tip, notch = np.array([1.0, 0.0]), inner * np.array([math.cos(sector), math.sin(sector)])
    normal = np.array([notch[1] - tip[1], tip[0] - notch[0]])
    x, y = np.hypot(u, v) * np.cos(angle), np.hypot(u, v) * np.sin(angle)
    return x * normal[0] + y * normal[1] <= tip @ normal


SHAPES: Final[dict[str, Callable[[Floats, Floats], Bools]]] = {
    "disk": lambda u, v: u**2 + v**2 <= 1,
    "square": lambda u, v: np.maximum(np.abs(u), np.abs(v)) <= 0.8,
    "triangle": lambda u, v: _polygon(u, v, 3, 1.0),
    "star": lambda u, v: _polygon(u, v, 5, 0.45),
    "ring": lambda u, v: (u**2 + v**2 <= 1) & (u**2 + v**2 >= 0.3),
    "cross": lambda u, v: (np.minimum(np.abs(u), np.abs(v)) <= 0.3) & (np.maximum(np.abs(u), np.abs(v)) <= 0.95),
}
_INSIDES: Final = tuple(SHAPES.values())


def make_scene(config: SceneConfig, index: int) -> Scene:
    """Scene number `index`."""
    rng = np.random.default_rng((config.seed, index))
    side = config.size_px
    image = _texture(rng, side, 0.35)
    instances: list[Instance] = []
    if rng.random() < config.crowd:
        instances.append(_paint_crowd(rng, image))
    for _ in range(rng.integers(config.objects[0], config.objects[1] + 1)):
        if (placed := _place(rng, side, config.extent, instances)) is not None:
            _paint(rng, image, placed)
            for other in instances:
                other.mask &= ~placed.mask
            instances.append(placed)
    visible = [i for i in instances if i.mask.any()]  # a crowd may have been covered
    noise = rng.normal(scale=4, size=image.shape)
    return Scene(np.clip(image + noise, 0, 255).round().astype(np.uint8), visible)


def _place(rng: np.random.Generator, side: int, extent: tuple[float, float], others: list[Instance]) -> Instance | None:
    """A shape that leaves enough of the others visible; sizes are log-uniform, so small ones are frequent."""
    for _ in range(TRIES):
        radius = 0.5 * side * math.exp(rng.uniform(*np.log(extent)))
        label = int(rng.integers(len(SHAPES)))
        centre = rng.uniform(0.8 * radius, side - 0.8 * radius, size=2)
        mask = _inside(label, side, centre, radius, rng.uniform(0, 2 * math.pi), rng.uniform(0.75, 1.0))
        area = int(mask.sum())
        if area >= 16 and all((o.mask & ~mask).sum() >= LEAST_VISIBLE * o.area for o in others if not o.is_crowd):
            return Instance(label, mask, area)
    return None


def _inside(label: int, side: int, centre: Floats, radius: float, angle: float, squeeze: float) -> Bools:
    y, x = np.mgrid[0:side, 0:side] + 0.5
    y, x = (y - centre[0]) / radius, (x - centre[1]) / radius
    u, v = math.cos(angle) * x + math.sin(angle) * y, math.cos(angle) * y - math.sin(angle) * x
    return _INSIDES[label](u / squeeze, v)


def _paint(rng: np.random.Generator, image: Floats, shape: Instance) -> None:
    """Fill a shape with a texture whose colour differs from the background it covers."""
    ground = image[shape.mask].mean(0)
    texture = _texture(rng, len(image), 0.25)
    for _ in range(TRIES):
        if np.abs(texture[shape.mask].mean(0) - ground).max() >= 50:
            break
        texture = _texture(rng, len(image), 0.25)
    image[shape.mask] = texture[shape.mask]


def _paint_crowd(rng: np.random.Generator, image: Floats) -> Instance:
    """A dozen tiny shapes of one class close together, annotated as one crowd."""
    side = len(image)
    label, radius = int(rng.integers(len(SHAPES))), max(2.0, 0.02 * side)
    middle = rng.uniform(0.25 * side, 0.75 * side, size=2)
    crowd = Instance(label, np.zeros((side, side), dtype=bool), 0, is_crowd=True)
    colour = rng.uniform(0, 255, size=3)
    for _ in range(12):
        centre = middle + rng.normal(scale=0.08 * side, size=2)
        crowd.mask |= _inside(label, side, centre, radius, rng.uniform(0, 2 * math.pi), 1.0)
    image[crowd.mask] = colour
    crowd.area = int(crowd.mask.sum())
    return crowd


def _texture(rng: np.random.Generator, side: int, contrast: float) -> Floats:
    """Two colours mixed by a pattern: uniform, gradient, stripes, checkerboard or blobs. (H, W, 3)"""
    first, second = rng.uniform(0, 255, size=3), rng.uniform(0, 255, size=3)
    second = first + contrast * (second - first)
    pattern = _PATTERNS[rng.integers(len(_PATTERNS))](rng, side)  # (H, W), 0 to 1
    return first + pattern[..., None] * (second - first)


def _waves(rng: np.random.Generator, side: int) -> tuple[Floats, Floats]:
    """Two perpendicular waves of a random direction, with a period from 4 px to a fifth of the image."""
    y, x = np.mgrid[0:side, 0:side] + 0.5
    angle = rng.uniform(0, math.pi)
    rate = 2 * math.pi / math.exp(rng.uniform(math.log(4), math.log(max(5, side / 5))))
    phase = rng.uniform(0, 2 * math.pi)
    along, across = math.cos(angle) * x + math.sin(angle) * y, math.cos(angle) * y - math.sin(angle) * x
    return np.sin(rate * along + phase), np.sin(rate * across + phase)


def _gradient(rng: np.random.Generator, side: int) -> Floats:
    y, x = np.mgrid[0:side, 0:side] / side - 0.5
    angle = rng.uniform(0, 2 * math.pi)
    return np.clip(0.5 + math.cos(angle) * x + math.sin(angle) * y, 0, 1)


def _blobs(rng: np.random.Generator, side: int) -> Floats:
    from scipy import ndimage

    coarse = rng.random((int(rng.integers(3, 9)),) * 2)
    return np.clip(ndimage.zoom(coarse, side / len(coarse), order=1, grid_mode=True, mode="nearest"), 0, 1)


_PATTERNS: Final[tuple[Callable[[np.random.Generator, int], Floats], ...]] = (
    lambda _rng, side: np.zeros((side, side)),
    _gradient,
    lambda rng, side: (_waves(rng, side)[0] > 0).astype(float),
    lambda rng, side: (np.multiply(*_waves(rng, side)) > 0).astype(float),
    _blobs,
)
