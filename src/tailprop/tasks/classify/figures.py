"""Figures of a classifier: the confusion matrix and the most confident mistakes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tailprop.tasks.classify.metrics import Accuracy
from tailprop.tasks.classify.sources import Source
from tailprop.tasks.common.fonts import drawable_names
from tailprop.tasks.common.look import look, new_figure, plain, save_figure, set_title
from tailprop.tasks.common.pages import draw_page, with_caption

if TYPE_CHECKING:  # matplotlib is imported when something is drawn, which most commands do late or never
    from matplotlib.axes import Axes

__all__ = ["CONFUSION_CLASSES", "draw_confusion", "draw_mistakes"]

CONFUSION_CLASSES = 1300  # largest confusion matrix that is drawn


_NAMED_CLASSES = 60  # drawn with names and counts; with more classes, a pixel each


@look()
def draw_confusion(counts: Tensor, names: Sequence[str], path: Path, title: str = "") -> None:
    """Plot a confusion matrix: rows are true classes, columns predicted ones."""
    few = len(counts) <= _NAMED_CLASSES
    side = 3.5 + 0.28 * len(counts)
    figure = new_figure(side + 1.2, side + 0.4) if few else new_figure(12, 12)
    axes = figure.subplots()
    share = counts / counts.sum(1, keepdim=True).clamp_min(1)
    power = 0.5 if few else 0.25  # roots make single mistakes visible
    image = axes.imshow((share**power).numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    bar = figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class, %")
    bar.set_ticks([(tick / 100) ** power for tick in (0, 1, 5, 20, 50, 100)], labels=["0", "1", "5", "20", "50", "100"])
    if few:
        _write_counts(axes, counts, share, names)
    accuracy = counts.diagonal().sum().item() / max(1, counts.sum().item())
    labels = ("predicted", "true") if few else ("predicted class index", "true class index")
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.spines[:].set_visible(False)
    set_title(figure, *([title] if title else []), f"{100 * accuracy:.1f} % of {counts.sum().item()} images correct")
    save_figure(figure, path)


def _write_counts(axes: "Axes", counts: Tensor, share: Tensor, names: Sequence[str]) -> None:
    for row, column in counts.nonzero().tolist():
        colour = "white" if share[row, column] > 0.35 else "black"
        axes.text(column, row, str(int(counts[row, column])), ha="center", va="center", fontsize=7, color=colour)
    labels = [plain(name) for name in drawable_names(names[: len(counts)])]  # in any script
    axes.set_xticks(range(len(labels)), labels, rotation=90 if max(map(len, labels)) > 2 else 0)
    axes.set_yticks(range(len(labels)), labels)


def draw_mistakes(result: Accuracy, source: Source, names: Sequence[str], path: Path, most: int, title: str = "") -> int:
    """Save a contact sheet of wrong predictions, the most confident first; returns how many it has."""
    tiles = []
    for row in result.worst_mistakes(most).tolist():
        true, predicted, index = result.answers[row].tolist()
        score = f"{names[predicted]} ({100 * float(result.confidence[row]):.0f} %)"
        tiles.append(with_caption(source.read(index), [f"predicted: {score}", f"true: {names[true]}"]))
    if tiles:
        draw_page(
            tiles, path, columns=min(6, len(tiles)), width_px=240, title=f"{title}: most confident mistakes" if title else ""
        )
    return len(tiles)
