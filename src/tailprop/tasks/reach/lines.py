"""Dashed lines that do not touch each other, with two marked ends: the pictures of the `path` problem."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["END", "LINE", "START", "draw_lines"]

LINE, END, START = 120, 200, 255  # gray values of lines and marks
DASH_PX: Final = 5
GAP_PX: Final = 2
MARGIN_PX: Final = 6  # between lines, and from lines to the border
MARK_PX: Final = 2.5  # radius
_CANDIDATES: Final = 64  # lines tried at once
_TURN: Final = 0.12  # standard deviation of the change of direction at each pixel, radians

Array = npt.NDArray[Any]


def draw_lines(rng: np.random.Generator, size_px: int, joined: bool) -> tuple[Array, Array]:
    """Two long lines and four short ones, uint8 (size_px, size_px). Both marks are on one long line, or one on each.

    The labels, int64 (size_px, size_px), are 1 on the line of the start mark, 0 on the other long line, and -1 elsewhere.
    """
    while True:
        free = np.ones((size_px, size_px), bool)
        lines: list[Array] = []
        for length in (0.6, 0.6, 0.25, 0.25, 0.25, 0.25):
            line = _place(rng, free, round(length * size_px))
            if line is None and len(lines) < 2:
                break
            if line is not None:
                lines.append(line)
                _occupy(free, line)
        else:
            return _render(size_px, lines, _marked(rng, lines, joined), joined)


def _place(rng: np.random.Generator, free: Array, length: int) -> Array | None:
    """A random smooth line over free pixels, (length, 2); None if none of the candidates fits."""
    size = free.shape[0]
    start = rng.uniform(MARGIN_PX, size - MARGIN_PX, (_CANDIDATES, 1, 2))
    bend = rng.normal(0, 0.03, (_CANDIDATES, 1)) + rng.normal(0, _TURN, (_CANDIDATES, length))
    angle = rng.uniform(0, 2 * np.pi, (_CANDIDATES, 1)) + np.cumsum(bend, axis=1)
    lines = start + np.cumsum(np.stack([np.sin(angle), np.cos(angle)], axis=-1), axis=1)  # (candidates, length, 2)
    inside = ((lines >= MARGIN_PX) & (lines <= size - 1 - MARGIN_PX)).all((1, 2))
    for line in lines[inside]:
        rows, columns = line.round().astype(int).T
        far_along = np.linalg.norm(line[0] - line[-1]) > 0.5 * length  # a curl would bring its ends together
        if far_along and free[rows, columns].all():
            return line
    return None


def _occupy(free: Array, line: Array) -> None:
    for row, column in line.round().astype(int):
        free[max(0, row - MARGIN_PX) : row + MARGIN_PX + 1, max(0, column - MARGIN_PX) : column + MARGIN_PX + 1] = False


def _marked(rng: np.random.Generator, lines: list[Array], joined: bool) -> tuple[Array, Array]:
    """The two ends to mark. Those of different lines are about as far apart as those of one line would be."""
    first, second = lines[0], lines[1]
    if joined:
        return first[0], first[-1]
    wanted = np.linalg.norm(first[0] - first[-1])
    pairs = [(a, b) for a in (first[0], first[-1]) for b in (second[0], second[-1])]
    order = rng.permutation(len(pairs))  # so that ties are not always the same pair
    return min((pairs[i] for i in order), key=lambda pair: abs(float(np.linalg.norm(pair[0] - pair[1]) - wanted)))


def _render(size_px: int, lines: list[Array], marked: tuple[Array, Array], joined: bool) -> tuple[Array, Array]:
    picture = np.zeros((size_px, size_px), np.uint8)
    labels = np.full((size_px, size_px), -1, np.int64)
    for number, line in enumerate(lines):
        dashes = np.arange(len(line)) % (DASH_PX + GAP_PX) < DASH_PX
        rows, columns = line[dashes].round().astype(int).T
        for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
            picture[rows + down, columns + right] = LINE
            if number < 2:
                labels[rows + down, columns + right] = int(number == 0)
    rows, columns = np.indices(picture.shape)
    for (row, column), value, label in zip(marked, (START, END), (1, int(joined)), strict=True):
        disc = (rows - row) ** 2 + (columns - column) ** 2 <= MARK_PX**2
        picture[disc], labels[disc] = value, label
    return picture, labels
