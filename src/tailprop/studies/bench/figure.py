"""Images per second over multiply-adds and over parameters."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailprop.studies.bench.rows import Cells
from tailprop.tasks.common.look import COLORS, HIDDEN, look, new_figure, save_figure

__all__ = ["draw_rates"]

_AXES = (("macs", 1e9, "GMACs of an image"), ("parameters", 1e6, "million parameters"))
_LABEL: Any = dict(textcoords="offset points", fontsize=7, ha="center", va="center")
_CLOSE = 0.05  # of logarithms, at which numbers would overlap
_PASSES = {"infer": "inference", "latency": "one image", "train": "training step"}


@look()
def draw_rates(cells: Sequence[Cells], path: Path) -> None:
    """Images per second over the cost of a model: a row of panels for each mode and form, in its first setting."""
    groups = _groups(cells)
    if not groups:
        raise ValueError("no model has both images per second and multiply-adds; there is nothing to draw")
    figure = new_figure(11, 3.8 * len(groups))
    panels: Any = figure.subplots(len(groups), 2, squeeze=False)
    for line, (title, rows) in zip(panels, groups.items(), strict=True):
        for axes, (column, unit, label) in zip(line, _AXES, strict=True):
            axes.set(xlabel=label, ylabel="images per second", xscale="log", yscale="log", title=title)
            _draw(axes, rows, column, unit)
    save_figure(figure, path)


def _groups(cells: Sequence[Cells]) -> dict[str, list[Cells]]:
    """Rows to draw by the title of their panels."""
    titles: dict[tuple[str, str], str] = {}
    groups: dict[str, list[Cells]] = {}
    for row in cells:
        if row["img_per_s_best"] and row["macs"]:
            title = titles.setdefault((row["mode"], row["form"]), _title(row))
            if title == _title(row):
                groups.setdefault(title, []).append(row)
    return groups


def _title(row: Cells) -> str:
    return f"{_PASSES[row['mode']]}, {row['form']}, {row['dtype']}, batch {row['batch_size']}, {row['size_px']} px"


def _draw(axes: Any, rows: Sequence[Cells], column: str, unit: float) -> None:
    """A point for each model with a number; the numbers are explained beside the panel, where names cannot overlap."""
    points = sorted((float(row[column]) / unit, float(row["img_per_s_best"]), row["model"]) for row in rows)
    names = []
    for number, (x, y, model) in enumerate(points, start=1):
        is_ours = model.startswith("tailprop")
        axes.plot(x, y, "o", color=COLORS[1] if is_ours else COLORS[0], markersize=4)
        axes.annotate(str(number), (x, y), xytext=_offset(points, number - 1), **_LABEL, color=COLORS[1] if is_ours else HIDDEN)
        names.append(f"{number} {model.partition('_patch')[0]}, {y:.3g}")
    axes.text(1.02, 1.0, "\n".join(names), transform=axes.transAxes, va="top", fontsize=7)
    for axis in (axes.xaxis, axes.yaxis):  # plain numbers, also between the powers of ten
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "235" else "")
    axes.grid(True)
    axes.margins(x=0.1, y=0.1)


def _offset(points: Sequence[tuple[float, float, str]], index: int) -> tuple[float, float]:
    """Where a number stands, in points: on a circle, another place for each neighbour that is closer than 5 %."""
    x, y, _ = points[index]
    before = sum(abs(math.log(x / x1)) < _CLOSE and abs(math.log(y / y1)) < _CLOSE for x1, y1, _ in points[:index])
    angle = math.pi / 4 + before * math.pi / 2
    return 8 * math.cos(angle), 8 * math.sin(angle)
