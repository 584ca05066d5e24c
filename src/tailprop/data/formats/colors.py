"""Tables of the colours that stand for classes in label maps.

Three forms are common, one class in each line:

    64 128 64 animal          label_colors.txt, as CamVid has it
    animal,64,128,64          class_dict.csv, below a header name,r,g,b
    animal:64,128,64::        labelmap.txt, as CVAT writes it, below a header that starts with #

The classes are numbered in the order of the lines. Pixels of a class with one of the names `IGNORED` have no label.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tailprop.utils.text import excerpt

__all__ = ["Color", "ColorTable", "parse_colors"]

IGNORED: Final = ("ignore", "ignored", "void", "unlabeled", "unlabelled")
_FORMS: Final = tuple(
    re.compile(form, re.ASCII)
    for form in (
        r"(?P<r>\d+)[\s,]+(?P<g>\d+)[\s,]+(?P<b>\d+)[\s,]+(?P<name>\S.*)",
        r"(?P<name>[^,]*[^,\s])\s*,\s*(?P<r>\d+)\s*,\s*(?P<g>\d+)\s*,\s*(?P<b>\d+)",
        r"(?P<name>[^:]*[^:\s]):(?P<r>\d+),(?P<g>\d+),(?P<b>\d+):[^:]*:[^:]*",
    )
)
_HEADER: Final = re.compile(r"#.*|name\s*,\s*r\s*,\s*g\s*,\s*b", re.IGNORECASE)

Color = tuple[int, int, int]


@dataclass(frozen=True)
class ColorTable:
    """The colour of each class, in order, and colours without a label."""

    colors: tuple[Color, ...]
    ignored: tuple[Color, ...] = ()

    def indices(self, pixels: npt.NDArray[np.uint8], ignore: int) -> npt.NDArray[np.int16]:
        """The class of each pixel, (H, W, 3) -> (H, W), or `ignore`; raises ValueError for other colours."""
        known = [*map(_code, self.colors), *map(_code, self.ignored)]
        order = np.argsort(known)
        classes = np.array([*range(len(self.colors)), *[ignore] * len(self.ignored)], dtype=np.int16)[order]
        codes = pixels.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], dtype=np.int32)  # (H, W)
        ordered = np.array(known, dtype=np.int32)[order]
        places = np.searchsorted(ordered, codes).clip(max=len(known) - 1)
        wrong = codes[ordered[places] != codes]
        if wrong.size:
            raise ValueError(f"it has colours that are not a class: {_counted(wrong)}; the table has {len(known)} colours")
        return classes[places]

    def lines(self, names: Sequence[str]) -> list[str]:
        """The table as text that `parse_colors` reads."""
        rows = [*zip(self.colors, names, strict=True), *((color, IGNORED[0]) for color in self.ignored)]
        return [f"{r} {g} {b} {name}" for (r, g, b), name in rows]


def _code(color: Color) -> int:
    return color[0] << 16 | color[1] << 8 | color[2]


def _counted(codes: npt.NDArray[Any], most: int = 3) -> str:
    """The most frequent colours with their numbers of pixels."""
    values, counts = np.unique(codes, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shown = [
        f"{value >> 16} {value >> 8 & 255} {value & 255} ({count} pixels)"
        for value, count in zip(values[order[:most]].tolist(), counts[order[:most]].tolist(), strict=True)
    ]
    return ", ".join(shown) + (f" and {len(values) - most} more" if len(values) > most else "")


def parse_colors(path: Path, text: str) -> tuple[tuple[str, ...], ColorTable] | None:
    """Names and colours of the classes; None if the first line has no colour, as in a plain list of names."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if lines and _HEADER.fullmatch(lines[0][1]):
        lines = lines[1:]
    form = next((form for form in _FORMS if lines and form.fullmatch(lines[0][1])), None)
    if form is None:
        return None
    names: dict[str, Color] = {}
    ignored: list[Color] = []
    taken: dict[Color, str] = {}
    for number, line in lines:
        name, color = _parse_line(form, line, f"{path}, line {number}")
        if color in taken:
            raise ValueError(f"{path}, line {number}: {excerpt(name)} has the colour of {excerpt(taken[color])}")
        if name in names:
            raise ValueError(f"{path}, line {number}: {excerpt(name)} is there twice")
        taken[color] = name
        if name.lower() in IGNORED:
            ignored.append(color)
        else:
            names[name] = color
    if not names:
        raise ValueError(f"{path} has no class but those without a label")
    return tuple(names), ColorTable(tuple(names.values()), tuple(ignored))


def _parse_line(form: re.Pattern[str], line: str, where: str) -> tuple[str, Color]:
    found = form.fullmatch(line)
    if found is None:
        raise ValueError(f"{where}: {excerpt(line)} is not a colour and a name as in the lines before")
    r, g, b = (int(found[part][:4]) for part in "rgb")
    if max(r, g, b) > 255:
        raise ValueError(f"{where}: the colour {r} {g} {b} is not from 0 to 255")
    return found["name"].strip(), (r, g, b)
