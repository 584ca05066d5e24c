"""Pictures of a run: learning curves, confusion, restored pictures."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tailprop.quality import Restored, psnr

if TYPE_CHECKING:  # matplotlib is imported when something is drawn: most commands draw nothing, or at their end
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CONFUSION_CLASSES", "draw_confusion", "draw_curves", "draw_learning", "draw_restored"]

CONFUSION_CLASSES = 1300  # the most a picture of their confusion has points for
_NAMED_CLASSES = 60  # with their names and counts; of more, a point each


def draw_learning(
    history: Sequence[dict[str, float]], path: Path, metrics: dict[str, str], measured_on: str = "validation"
) -> None:
    """Training loss and metrics by epoch; `metrics` names what is drawn, and in which words."""
    figure = _figure(7, 4)
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
    figure.savefig(path, dpi=120)


def draw_confusion(counts: Tensor, names: Sequence[str], path: Path) -> None:
    """True classes down, predicted ones across."""
    few = len(counts) <= _NAMED_CLASSES
    side = 3.5 + 0.28 * len(counts) if few else 12
    figure = _figure(side, side)
    axes = figure.subplots()
    share = counts / counts.sum(1, keepdim=True).clamp_min(1)
    axes.imshow((share ** (0.5 if few else 0.25)).numpy(), cmap="Blues", vmin=0, vmax=1)  # roots, so that single mistakes show
    if few:
        _write_counts(axes, counts, share, names)
    right = counts.diagonal().sum().item() / max(1, counts.sum().item())
    labels = ("predicted", "true") if few else ("predicted, by its number", "true class, by its number")
    axes.set(xlabel=labels[0], ylabel=labels[1], title=f"{100 * right:.1f} % of {counts.sum().item()} right")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a letter the font lacks is drawn as a box
        figure.savefig(path, dpi=120)


def _write_counts(axes: "Axes", counts: Tensor, share: Tensor, names: Sequence[str]) -> None:
    for row, column in counts.nonzero().tolist():
        colour = "white" if share[row, column] > 0.35 else "black"
        axes.text(column, row, str(int(counts[row, column])), ha="center", va="center", fontsize=7, color=colour)
    labels = [name.replace("$", r"\$") for name in names[: len(counts)]]  # a class name is no formula
    axes.set_xticks(range(len(labels)), labels, rotation=90 if max(map(len, labels)) > 2 else 0)
    axes.set_yticks(range(len(labels)), labels)


def draw_curves(curves: dict[str, tuple[list[float], list[float]]], path: Path, across: str, up: str) -> None:
    """Several runs in one picture: name: (across, up)."""
    figure = _figure(7, 4)
    axes = figure.subplots()
    for name, (x, y) in curves.items():
        axes.plot(x, y, marker=".", label=name)
    axes.set(xlabel=across, ylabel=up)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def draw_restored(pictures: Sequence[Restored], path: Path, most_px: int = 256) -> None:
    """Damaged, restored and clean side by side, a row for each picture; of large ones the middle, PSNR of the whole."""
    figure = _figure(8.1, 2.95 * len(pictures))
    for row, shown in zip(figure.subplots(len(pictures), 3, squeeze=False), pictures, strict=True):
        titles = (
            f"{shown.name}: {shown.damaged_psnr:.2f} dB",
            f"restored: {psnr(shown.restored, shown.clean):.2f} dB",
            "clean",
        )
        for axes, picture, title in zip(row, (shown.damaged, shown.restored, shown.clean), titles, strict=True):
            h, w = picture.shape[:2]
            top, left = max(0, h - most_px) // 2, max(0, w - most_px) // 2
            middle = picture[top : top + most_px, left : left + most_px]
            gray = middle.shape[2] == 1
            axes.imshow(middle[..., 0] if gray else middle, cmap="gray" if gray else None, vmin=0, vmax=255)
            axes.set_title(title, fontsize=9)
            axes.axis("off")
    figure.savefig(path, dpi=120)


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # no display is asked for
    return figure
