"""Figures of a classifier: its confusion matrix, its worst mistakes."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tailprop.tasks.classify.metrics import Accuracy
from tailprop.tasks.classify.sources import Source
from tailprop.tasks.common.figures import new_figure
from tailprop.tasks.common.pages import draw_page, with_caption

if TYPE_CHECKING:  # matplotlib is imported when something is drawn: most commands draw nothing, or at their end
    from matplotlib.axes import Axes

__all__ = ["CONFUSION_CLASSES", "draw_confusion", "draw_mistakes"]

CONFUSION_CLASSES = 1300  # the most an image of their confusion has points for


_NAMED_CLASSES = 60  # with their names and counts; of more, a point each


def draw_confusion(counts: Tensor, names: Sequence[str], path: Path) -> None:
    """True classes down, predicted ones across."""
    few = len(counts) <= _NAMED_CLASSES
    side = 3.5 + 0.28 * len(counts) if few else 12
    figure = new_figure(side, side)
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


def draw_mistakes(result: Accuracy, source: Source, names: Sequence[str], path: Path, most: int) -> int:
    """A contact sheet of wrong answers, the most confident first; how many there are on it."""
    tiles = []
    for row in result.worst_mistakes(most).tolist():
        true, predicted, place = result.answers[row].tolist()
        said = f"{names[predicted]} {100 * float(result.confidence[row]):.0f} %"
        tiles.append(with_caption(source.read(place), [f"predicted: {said}", f"true: {names[true]}"]))
    if tiles:
        draw_page(tiles, path, columns=min(6, len(tiles)), width_px=240)
    return len(tiles)
