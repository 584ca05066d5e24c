"""Figures of a study, from the logs of the run folders that exist: metrics by epoch, and learned lengths and weights."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailprop.studies.ablate.rows import epochs_of
from tailprop.studies.ablate.study import Run
from tailprop.tasks import find_spec
from tailprop.tasks.common.look import COLORS, look, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_figures"]

Epochs = list[dict[str, Any]]
Logs = dict[str, dict[str, list[Epochs]]]  # recipe: variant: the epochs of each seed
Curve = tuple[list[float], list[float]]
_STYLES = ("-", "--", ":", "-.")


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
    figure = new_figure(1 + 6 * len(logs), 4.5)
    panels = figure.subplots(1, len(logs), squeeze=False)[0]
    for axes, (recipe, variants) in zip(panels, logs.items(), strict=True):
        metric, label = labels[recipe]
        for place, (variant, seeds) in enumerate(variants.items()):
            color, style = f"C{place % len(COLORS)}", _STYLES[place // len(COLORS) % len(_STYLES)]
            at = _by_epoch((row["epoch"], row[metric]) for epochs in seeds for row in epochs if metric in row)
            axes.plot(list(at), [statistics.fmean(values) for values in at.values()], style, color=color, label=variant)
            if len(seeds) > 1:
                axes.fill_between(list(at), list(map(min, at.values())), list(map(max, at.values())), color=color, alpha=0.15)
        axes.set(xlabel="epoch", ylabel=f"{label}, mean and range of seeds", title=recipe)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    save_figure(figure, path)


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
    figure = new_figure(1 + 3 * len(columns), 6.5)
    panels = figure.subplots(2, len(columns), squeeze=False)
    for (title, seeds), above, below in zip(columns, panels[0], panels[1], strict=True):
        _draw_quantities(above, seeds, ("length", "speed", "damping"))
        _draw_quantities(below, seeds, ("lambda", "order"))
        above.set(title=title, ylabel="length, px (wave: speed, damping)", yscale="log")
        below.set(xlabel="epoch", ylabel="lambda, order", ylim=(0, None))
    figure.suptitle("median over channels, mean over seeds; dark: first layers, bright: last layers")
    save_figure(figure, path)


def _draw_quantities(axes: "Axes", seeds: Sequence[Epochs], kinds: Sequence[str]) -> None:
    from matplotlib import colormaps

    curves = _learned_curves(seeds, kinds)
    modules = list(dict.fromkeys(module for module, _ in curves))
    names = list(dict.fromkeys(name for _, name in curves))
    for (module, name), (x, y) in curves.items():
        color = colormaps["viridis"](0.9 * modules.index(module) / max(1, len(modules) - 1))
        label = name if module == modules[0] else None
        axes.plot(x, y, _STYLES[names.index(name) % len(_STYLES)], color=color, label=label, linewidth=1)
    axes.grid(alpha=0.3)
    if curves:
        axes.legend(fontsize="small")


def _learned_curves(seeds: Sequence[Epochs], kinds: Sequence[str]) -> dict[tuple[str, str], Curve]:
    """Medians by epoch, averaged over seeds, of each quantity of each layer."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in (row for epochs in seeds for row in epochs):
        for module, values in (row.get("learned") or {}).items():
            for name, (_, median, _) in values.items():
                if name.partition("_")[0] in kinds:
                    found.setdefault((module, name), []).append((row["epoch"], median))
    curves = {}
    for key, points in found.items():
        at = _by_epoch(points)
        curves[key] = (list(map(float, at)), [statistics.fmean(values) for values in at.values()])
    return curves
