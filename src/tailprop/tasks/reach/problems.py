"""The problems of the suite. Each makes examples from random numbers or photographs, and reads an answer from an output.

Shapes: H, W; a picture is uint8 (H, W, 3), and everything a network needs is in it, so that a problem can be posed as an image
file. `encode` turns a picture into the input of a network, float32 (H, W, inputs).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from tailprop.tasks.reach.lines import END, draw_lines

__all__ = ["IGNORED", "PALETTE", "PROBLEMS", "Example", "Problem", "create_problem"]

IGNORED: Final = -1  # label of pixels that have none
# Okabe and Ito's colours, which colour-blind people can tell apart
PALETTE: Final = np.array([(230, 159, 0), (86, 180, 233), (0, 158, 115), (204, 121, 167)], np.uint8)
_JOINED, _APART = (86, 180, 233), (230, 159, 0)
# full-range BT.601: luma, blue difference, red difference
_YCBCR: Final = np.array([(0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312)], np.float32)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Example:
    """A picture and its solution."""

    picture: Array  # uint8 (H, W, 3)
    target: Array  # labels int64 (H, W), or values float32 (H, W, outputs)


class Problem(ABC):
    """One problem of the suite.

    `kind` is what a network outputs for each pixel: a label, or values.
    """

    kind: ClassVar[Literal["labels", "values"]]
    inputs: ClassVar[int]
    outputs: ClassVar[int]
    uses_photos: ClassVar[bool] = False
    classes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, share: float = 0.03, block_px: int = 32) -> None:
        self.share, self.block_px = share, block_px

    @abstractmethod
    def make(self, rng: np.random.Generator, size_px: int, photo: Array | None = None) -> Example: ...

    def encode(self, picture: Array) -> Array:
        return picture.astype(np.float32) / 255

    @abstractmethod
    def draw(self, picture: Array, output: Array) -> Array:
        """The answer of a network as a picture; output is (H, W, outputs)."""

    @abstractmethod
    def score(self, example: Example, output: Array) -> float:
        """Percentage of right answers, or PSNR in dB."""


class _Labels(Problem):
    kind = "labels"
    inputs, outputs = 3, len(PALETTE)
    classes = ("orange", "blue", "green", "pink")

    def draw(self, picture: Array, output: Array) -> Array:  # noqa: ARG002 - every pixel has a label
        return PALETTE[output.argmax(-1)]

    def score(self, example: Example, output: Array) -> float:
        counted = example.target != IGNORED
        return 100 * float((output.argmax(-1) == example.target)[counted].mean())


class Seeds(_Labels):
    """Label every pixel with the colour of its nearest seed, a single pixel."""

    seeds: Final = 6

    def make(self, rng: np.random.Generator, size_px: int, photo: Array | None = None) -> Example:  # noqa: ARG002
        places = rng.integers(size_px, size=(self.seeds, 2))
        colours = rng.integers(len(PALETTE), size=self.seeds)
        picture = np.zeros((size_px, size_px, 3), np.uint8)
        picture[places[:, 0], places[:, 1]] = PALETTE[colours]
        grid = np.indices((size_px, size_px))[None]  # (1, 2, H, W)
        nearest = ((grid - places[:, :, None, None]) ** 2).sum(1).argmin(0)  # (H, W)
        return Example(picture, colours[nearest].astype(np.int64))


class Key(_Labels):
    """Label white shapes by their form and by the colour of one square, the key, which is far from all of them."""

    cell_px: Final = 8
    key_px: Final = 12
    shapes: Final = 6
    glyphs: Final = np.array(
        [
            ["#####", "#...#", "#...#", "#...#", "#####"],  # frame: the colour of the key
            ["#...#", ".#.#.", "..#..", ".#.#.", "#...#"],  # cross: the colour opposite to it
        ]
    )

    def make(self, rng: np.random.Generator, size_px: int, photo: Array | None = None) -> Example:  # noqa: ARG002
        picture = np.zeros((size_px, size_px, 3), np.uint8)
        target = np.full((size_px, size_px), IGNORED, np.int64)
        cells = np.argwhere(np.ones((size_px // self.cell_px,) * 2))
        key_cell, colour = cells[rng.integers(len(cells))], int(rng.integers(len(PALETTE)))
        top, left = np.minimum(key_cell * self.cell_px, size_px - self.key_px)
        picture[top : top + self.key_px, left : left + self.key_px] = PALETTE[colour]
        far = cells[np.abs(cells * self.cell_px - (top, left)).max(1) >= 3 * self.cell_px]
        for cell in rng.permutation(far)[: self.shapes]:
            self._draw_shape(picture, target, cell, colour, rng)
        return Example(picture, target)

    def _draw_shape(self, picture: Array, target: Array, cell: Array, colour: int, rng: np.random.Generator) -> None:
        form = int(rng.integers(len(self.glyphs)))
        filled = np.array([list(row) for row in self.glyphs[form]]) == "#"
        window = self._window(cell, rng)
        picture[window][filled] = 255
        target[window][filled] = (colour + 2 * form) % len(PALETTE)

    def _window(self, cell: Array, rng: np.random.Generator) -> tuple[slice, slice]:
        """A 5x5 window somewhere in a cell, with a margin."""
        top, left = cell * self.cell_px + rng.integers(1, self.cell_px - 5, size=2)
        return slice(top, top + 5), slice(left, left + 5)

    def draw(self, picture: Array, output: Array) -> Array:
        white = (picture == 255).all(-1, keepdims=True)
        return np.where(white, PALETTE[output.argmax(-1)], picture)


class Keys(Key):
    """The same with two squares of different colours, far apart: the nearer one decides.

    Who knows both colours, as from the mean of the map, but not the places is right at half of the shapes.
    """

    least_apart: Final = 8.0  # pixels between the distances of a shape to both keys

    def make(self, rng: np.random.Generator, size_px: int, photo: Array | None = None) -> Example:  # noqa: ARG002
        picture = np.zeros((size_px, size_px, 3), np.uint8)
        target = np.full((size_px, size_px), IGNORED, np.int64)
        cells = np.argwhere(np.ones((size_px // self.cell_px,) * 2))
        corners = np.minimum(cells * self.cell_px, size_px - self.key_px)  # of a key in each cell
        first = corners[rng.integers(len(corners))]
        apart = corners[np.linalg.norm(corners - first, axis=1) >= size_px / 2]
        keys = np.stack([first, apart[rng.integers(len(apart))]])
        colours = rng.permutation(len(PALETTE))[:2]
        for (top, left), colour in zip(keys, colours, strict=True):
            picture[top : top + self.key_px, left : left + self.key_px] = PALETTE[colour]
        centres = (cells + 0.5) * self.cell_px
        distance = np.linalg.norm(centres[:, None] - (keys + self.key_px / 2), axis=-1)  # (cells, 2)
        near, far = distance.min(1), distance.max(1)
        free = (near >= 2 * self.cell_px) & (far - near >= self.least_apart)
        for i in rng.permutation(np.flatnonzero(free))[: self.shapes]:
            self._draw_shape(picture, target, cells[i], int(colours[distance[i].argmin()]), rng)
        return Example(picture, target)


class Path(Problem):
    """Are the two marked ends joined by a dashed line? After Pathfinder (Linsley et al. 2018).

    A network labels every pixel of the two long lines with whether it is on the line of the brighter mark, and the answer is
    read at the darker one: a single bit for a whole picture would take hours to learn from.
    """

    kind = "labels"
    inputs, outputs = 1, 2
    classes = ("apart", "joined")

    def make(self, rng: np.random.Generator, size_px: int, photo: Array | None = None) -> Example:  # noqa: ARG002
        gray, target = draw_lines(rng, size_px, bool(rng.integers(2)))
        return Example(np.repeat(gray[..., None], 3, axis=2), target)

    def encode(self, picture: Array) -> Array:
        return picture[..., :1].astype(np.float32) / 255

    def draw(self, picture: Array, output: Array) -> Array:
        """Lines in the colours of their labels."""
        colours = np.where(output.argmax(-1)[..., None] == 1, _JOINED, _APART)
        return (colours * (picture / 255.0)).astype(np.uint8)

    def score(self, example: Example, output: Array) -> float:
        asked = example.picture[..., 0] == END
        joined = output[asked].mean(0).argmax()
        return 100 * float(joined == example.target[asked][0])


class _Photo(Problem):
    kind = "values"
    uses_photos = True


class Color(_Photo):
    """The colours of a gray photograph from a few pixels that have theirs. The score is the PSNR of the chroma."""

    inputs, outputs = 4, 2

    def make(self, rng: np.random.Generator, size_px: int, photo: Array | None = None) -> Example:
        assert photo is not None
        luma = (photo @ _YCBCR[0]).round().astype(np.uint8)
        hinted = _random_mask(rng, size_px, self.share)
        picture = np.where(hinted[..., None], photo, luma[..., None])
        return Example(picture, _chroma(photo))

    def encode(self, picture: Array) -> Array:
        """Luma, chroma of the hints, and where they are: the pixels that are not gray."""
        hinted = np.ptp(picture, axis=-1, keepdims=True) > 0
        luma = (picture @ _YCBCR[0])[..., None] / 255
        return np.concatenate([luma, 4 * _chroma(picture) * hinted, hinted], axis=-1).astype(np.float32)

    def draw(self, picture: Array, output: Array) -> Array:
        luma = picture @ _YCBCR[0] / 255
        colour = np.concatenate([luma[..., None], output], axis=-1) @ np.linalg.inv(_YCBCR).T
        return _to_bytes(colour)

    def score(self, example: Example, output: Array) -> float:
        return _psnr(output, example.target)


class Fill(_Photo):
    """A photograph from a small share of its pixels; the others are black. The score is the PSNR of the missing pixels."""

    inputs, outputs = 4, 3

    def make(self, rng: np.random.Generator, size_px: int, photo: Array | None = None) -> Example:
        assert photo is not None
        known = self._known(rng, size_px)
        picture = np.where(known[..., None], np.maximum(photo, 1), 0).astype(np.uint8)  # black means missing
        return Example(picture, photo.astype(np.float32) / 255)

    def _known(self, rng: np.random.Generator, size_px: int) -> Array:
        return _random_mask(rng, size_px, self.share)

    def encode(self, picture: Array) -> Array:
        known = (picture > 0).any(-1, keepdims=True)
        return np.concatenate([picture / 255, known], axis=-1).astype(np.float32)

    def draw(self, picture: Array, output: Array) -> Array:
        known = (picture > 0).any(-1, keepdims=True)
        return np.where(known, picture, _to_bytes(output))

    def score(self, example: Example, output: Array) -> float:
        missing = ~(example.picture > 0).any(-1)
        return _psnr(np.clip(output, 0, 1)[missing], example.target[missing])


class Blocks(Fill):
    """A photograph with a square missing."""

    def _known(self, rng: np.random.Generator, size_px: int) -> Array:
        side = self.block_px
        if side >= size_px:
            raise ValueError(f"data.block_px must be smaller than data.size_px, {size_px}; got {side}")
        known = np.ones((size_px, size_px), bool)
        top, left = rng.integers(size_px - side + 1, size=2)
        known[top : top + side, left : left + side] = False
        return known


PROBLEMS: Final[dict[str, type[Problem]]] = {
    "seeds": Seeds,
    "key": Key,
    "keys": Keys,
    "path": Path,
    "color": Color,
    "fill": Fill,
    "blocks": Blocks,
}


def create_problem(name: str, share: float, block_px: int) -> Problem:
    return PROBLEMS[name](share, block_px)


def _random_mask(rng: np.random.Generator, size_px: int, share: float) -> Array:
    """A share of the pixels, at least one."""
    mask = np.zeros(size_px * size_px, bool)
    mask[rng.choice(mask.size, max(1, round(share * mask.size)), replace=False)] = True
    return mask.reshape(size_px, size_px)


def _chroma(rgb: Array) -> Array:  # uint8 (H, W, 3) -> float32 (H, W, 2), from -0.5 to 0.5
    return (rgb.astype(np.float32) / 255) @ _YCBCR[1:].T


def _to_bytes(values: Array) -> Array:
    return (np.clip(values, 0, 1) * 255).round().astype(np.uint8)


def _psnr(values: Array, truth: Array) -> float:
    mean_square = float(np.square(values.astype(np.float64) - truth).mean())
    return -10 * float(np.log10(max(mean_square, 1e-10)))
