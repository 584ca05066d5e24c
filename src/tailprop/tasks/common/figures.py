"""Figures of a run: learning curves."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tailprop.engine.config import TaskConfig
from tailprop.tasks.common.look import COLORS, look, new_figure, save_figure, set_title

if TYPE_CHECKING:  # matplotlib is slow to import, and most commands draw nothing
    from matplotlib.axes import Axes

__all__ = ["dataset_name", "draw_curves", "draw_learning", "new_figure", "run_title", "save_figure"]

History = Sequence[dict[str, float]]
MARKERS = "osv^"


def run_title(config: TaskConfig, folder: Path) -> str:
    """Run, model and data in one line, for titles."""
    mixer = config.model.args.get("mixer")
    model = f"{config.model.name} with {mixer}" if mixer else config.model.name
    return ", ".join(part for part in (folder.name, model, dataset_name(getattr(config, "data", None))) if part)


def dataset_name(data: Any) -> str:
    """A dataset by its folder, or by its name or source if it has none."""
    name = getattr(data, "problem", "") or getattr(data, "name", "")
    root = getattr(data, "root", None) or getattr(data, "test", None)
    return str(name or (Path(root).name if root else getattr(data, "source", "")))


@look()
def draw_learning(
    history: History, path: Path, metrics: dict[str, str], measured_on: str = "validation", title: str = ""
) -> None:
    """Draw metrics, and losses in training and evaluation, by epoch; `metrics` maps each metric to its label."""
    figure = new_figure(9, 3.8)
    left, right = figure.subplots(1, 2)
    for place, (name, label) in enumerate(metrics.items()):
        _draw_metric(left, _series(history, name), label, place)
    is_percent = all(label.endswith("%") for label in metrics.values())
    left.set(ylabel=f"{_shared_label(metrics)} on {measured_on} images".replace("images images", "images"))
    left.set_ylim((0, 105) if is_percent else None)
    for place, (name, label) in enumerate((("loss", "training loss"), ("val_loss", f"{_loss_name(measured_on)} loss"))):
        x, y = _series(history, name)
        if x:
            right.plot(x, y, marker=MARKERS[place], markersize=3, linestyle="-" if place == 0 else "--", label=label)
    top = max(
        (value for line in right.lines for value in np.asarray(line.get_ydata(), float) if np.isfinite(value)), default=1.0
    )
    right.set(ylabel="loss", ylim=(0, 1.06 * max(top, 1e-12)))  # a point at the top is drawn whole
    for axes in (left, right):
        _finish(axes, with_legend=axes is right or len(metrics) > 1)
    if title:
        set_title(figure, title)
    save_figure(figure, path)


def _series(history: History, name: str) -> tuple[list[float], list[float]]:
    """Epochs in which something was measured, and its values."""
    rows = [row for row in history if name in row]
    return [row["epoch"] for row in rows], [row[name] for row in rows]


def _draw_metric(axes: "Axes", series: tuple[list[float], list[float]], label: str, place: int) -> None:
    x, y = series
    axes.plot(x, y, marker=MARKERS[place % len(MARKERS)], markersize=3, color=COLORS[place], label=label)
    if x:
        best = max(range(len(y)), key=y.__getitem__)
        axes.annotate(f"{y[best]:.1f}", (x[best], y[best]), textcoords="offset points", xytext=(0, 6), ha="center")


def _shared_label(metrics: dict[str, str]) -> str:
    """The label of a single metric, or the unit of several."""
    units = {label.rpartition(", ")[2] for label in metrics.values()}
    return next(iter(metrics.values())) if len(metrics) == 1 else ", ".join(sorted(units))


def _loss_name(measured_on: str) -> str:
    return "evaluation" if measured_on == "training images" else measured_on


def _finish(axes: "Axes", with_legend: bool) -> None:
    """Whole epochs as ticks, a grid, a legend."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid()
    axes.margins(x=0.05)
    if axes.lines and with_legend:
        axes.legend()


@look()
def draw_curves(curves: dict[str, tuple[list[float], list[float]]], path: Path, across: str, up: str) -> None:
    """Draw several curves in one figure; `curves` maps a name to (x, y)."""
    figure = new_figure(7, 4)
    axes = figure.subplots()
    for place, (name, (x, y)) in enumerate(curves.items()):
        axes.plot(x, y, marker=MARKERS[place % len(MARKERS)], markersize=4, label=name)
    axes.set(xlabel=across, ylabel=up)
    axes.grid()
    axes.legend()
    save_figure(figure, path)
