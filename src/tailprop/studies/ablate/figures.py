"""Figures of a study, from the logs of the run folders that exist: metrics by epoch, and learned lengths and weights."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailprop.studies.ablate.rows import epochs_of
from tailprop.studies.ablate.study import Run
from tailprop.tasks import find_spec
from tailprop.tasks.common.look import COLORS, look, new_figure, save_figure, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_figures"]

Epochs = list[dict[str, Any]]
Logs = dict[str, dict[str, list[Epochs]]]  # recipe: variant: the epochs of each seed
Curve = tuple[list[float], list[float]]
_STYLES = ("-", "--", ":", "-.")
_MARKERS = "osv^D"


@look()
def draw_figures(out: Path, runs: Sequence[Run]) -> None:
    """Draw curves.png and learned.png; without any run folder, earlier figures are left alone."""
    logs: Logs = {}
    for run in runs:
        if epochs := epochs_of(run.folder):
            logs.setdefault(run.recipe, {}).setdefault(run.variant, []).append(epochs)
    if not logs:
        return
    labels = {run.recipe: (run.metric, find_spec(run.config.task).metrics[run.metric]) for run in runs}
    _draw_curves(logs, labels, out / "curves.png")
    _draw_learned(logs, out / "learned.png")


def _draw_curves(logs: Logs, labels: dict[str, tuple[str, str]], path: Path) -> None:
    """A panel for each recipe, two beside each other, and one legend for all."""
    columns, rows = min(2, len(logs)), -(-len(logs) // 2)
    names = list(dict.fromkeys(variant for variants in logs.values() for variant in variants))
    figure = new_figure(1 + 4.3 * columns, 0.9 + 3.1 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (recipe, variants) in zip(panels, logs.items(), strict=False):
        metric, label = labels[recipe]
        for variant, seeds in variants.items():
            place = names.index(variant)
            color, style = COLORS[place % len(COLORS)], _STYLES[place // len(COLORS) % len(_STYLES)]
            at = _by_epoch((row["epoch"], row[metric]) for epochs in seeds for row in epochs if metric in row)
            means = [statistics.fmean(values) for values in at.values()]
            axes.plot(list(at), means, style, marker=_MARKERS[place % len(_MARKERS)], markersize=4, color=color, label=variant)
            if len(seeds) > 1:
                axes.fill_between(list(at), list(map(min, at.values())), list(map(max, at.values())), color=color, alpha=0.15)
        axes.set(ylabel=label, title=recipe)
        _finish(axes)
    for axes in panels[len(logs) :]:
        axes.remove()
    found = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend([found[name] for name in names], names, loc="outside lower center", ncols=min(5, len(names)))
    most = max(len(seeds) for variants in logs.values() for seeds in variants.values())
    set_title(figure, f"Mean and range of up to {most} seeds" if most > 1 else "One seed")
    save_figure(figure, path)


def _finish(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("epoch")
    low, high = axes.get_xlim()
    if high - low < 1:  # a single epoch
        axes.set_xlim(low - 0.5, high + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid()


def _by_epoch(points: Iterable[tuple[int, float]]) -> dict[int, list[float]]:
    at: dict[int, list[float]] = {}
    for epoch, value in points:
        at.setdefault(epoch, []).append(value)
    return dict(sorted(at.items()))


def _draw_learned(logs: Logs, path: Path) -> None:
    """A column for each variant that learns lengths, lambda or the like; a line for each layer, darker in early ones."""
    columns = [
        (f"{recipe}, {variant}", seeds)
        for recipe, variants in logs.items()
        for variant, seeds in variants.items()
        if any(row.get("learned") for epochs in seeds for row in epochs)
    ]
    if not columns:
        return
    wide, bands = min(3, len(columns)), -(-len(columns) // 3)
    figure = new_figure(1 + 3 * wide, 5.6 * bands)
    panels = figure.subplots(2 * bands, wide, squeeze=False)
    for place, (title, seeds) in enumerate(columns):
        above, below = panels[2 * (place // wide) : 2 * (place // wide) + 2, place % wide]
        above.set(title=title, ylabel="length, px (wave: own units)", yscale="log")
        _draw_quantities(above, seeds, ("length", "speed", "damping"))
        _draw_quantities(below, seeds, ("lambda", "order"))
        below.set(ylabel="\u03bb or order \u03b1", ylim=(0, None))
    for axes in panels.ravel():
        if not axes.lines:  # nothing of this kind is learned
            axes.remove()
    set_title(figure, "median and range over channels, mean over seeds; dark: first layers, bright: last layers")
    save_figure(figure, path)


def _draw_quantities(axes: "Axes", seeds: Sequence[Epochs], kinds: Sequence[str]) -> None:
    from matplotlib import colormaps

    low, curves, high = (_learned_curves(seeds, kinds, which) for which in range(3))
    modules = list(dict.fromkeys(module for module, _ in curves))
    names = list(dict.fromkeys(name for _, name in curves))
    for (module, name), (x, y) in curves.items():
        color = colormaps["viridis"](0.9 * modules.index(module) / max(1, len(modules) - 1))
        label = name if module == modules[0] else None
        axes.plot(
            x,
            y,
            _STYLES[names.index(name) % len(_STYLES)],
            color=color,
            label=label,
            linewidth=1,
            marker="." if len(x) == 1 else None,
        )
        for _, edge in (low[module, name], high[module, name]):
            if edge != y:  # one value for all channels
                axes.plot(x, edge, _STYLES[names.index(name) % len(_STYLES)], color=color, linewidth=0.5, alpha=0.5)
    _finish(axes)
    if curves:
        axes.legend(fontsize="small")


def _learned_curves(seeds: Sequence[Epochs], kinds: Sequence[str], which: int) -> dict[tuple[str, str], Curve]:
    """Minimum (0), median (1) or maximum (2) by epoch, averaged over seeds, of each quantity of each layer."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in (row for epochs in seeds for row in epochs):
        for module, values in (row.get("learned") or {}).items():
            for name, spread in values.items():
                if name.partition("_")[0] in kinds:
                    found.setdefault((module, name), []).append((row["epoch"], spread[which]))
    curves = {}
    for key, points in found.items():
        at = _by_epoch(points)
        curves[key] = (list(map(float, at)), [statistics.fmean(values) for values in at.values()])
    return curves
