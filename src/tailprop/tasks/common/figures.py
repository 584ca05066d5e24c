"""Figures of a run: learning curves."""

from collections.abc import Sequence
from pathlib import Path

from tailprop.tasks.common.look import new_figure, save_figure

__all__ = ["draw_curves", "draw_learning", "new_figure", "save_figure"]


def draw_learning(
    history: Sequence[dict[str, float]], path: Path, metrics: dict[str, str], measured_on: str = "validation"
) -> None:
    """Draw training loss and metrics by epoch; `metrics` maps each metric to its label."""
    figure = new_figure(7, 4)
    left = figure.subplots()
    right = left.twinx()
    right.plot([r["epoch"] for r in history], [r["loss"] for r in history], color="tab:orange", label="training loss")
    for (name, label), color in zip(metrics.items(), ("tab:blue", "tab:green", "tab:purple", "tab:red"), strict=False):
        evaluated = [row for row in history if name in row]
        left.plot([r["epoch"] for r in evaluated], [r[name] for r in evaluated], color=color, marker=".", label=label)
        if evaluated:
            best = max(evaluated, key=lambda row: row[name])
            where = (best["epoch"], best[name])
            left.annotate(f"{best[name]:.1f}", where, textcoords="offset points", xytext=(0, 6), ha="center")
    is_percent = all(label.endswith("%") for label in metrics.values())
    left.set(xlabel="epoch", ylabel=measured_on, ylim=(0, 105) if is_percent else None)
    right.set(ylabel="training loss", ylim=(0, None))
    left.grid(alpha=0.3)
    lines = [*left.lines, *right.lines]
    figure.legend(lines, [str(line.get_label()) for line in lines], loc="outside upper center", ncols=3)
    save_figure(figure, path)


def draw_curves(curves: dict[str, tuple[list[float], list[float]]], path: Path, across: str, up: str) -> None:
    """Draw several curves in one figure; `curves` maps a name to (x, y)."""
    figure = new_figure(7, 4)
    axes = figure.subplots()
    for name, (x, y) in curves.items():
        axes.plot(x, y, marker=".", label=name)
    axes.set(xlabel=across, ylabel=up)
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)
