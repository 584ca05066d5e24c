"""The figures of the demo: the operator on a photograph, and what the trained network does inside."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from torch import Tensor

import tailprop
from tailprop.studies.figures import receptive_field
from tailprop.studies.figures.gate import gate_of
from tailprop.studies.figures.inputs import Inputs
from tailprop.studies.figures.network import batches, load_network
from tailprop.tasks.classify.data import open_source
from tailprop.tasks.classify.load import ImageClassifier, load_classifier
from tailprop.tasks.common.look import COLORS, color_bar, look, new_figure, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_field", "draw_inside", "draw_operator"]

LAMBDAS: Final = (1.0, 0.7, 0.3, 0.0)
POINTS: Final = ((70, 60), (128, 150), (200, 90))  # row and column of the sources
DETAIL_PX: Final = 56  # side of the enlarged part
SHOWN: Final = 12  # digits with answers
FIELDS: Final = 8  # digits whose receptive fields are averaged
LEAST_RANGE: Final = 0.02  # of lambda, for the colour scale
Array = npt.NDArray[np.float64]


@look()
def draw_operator(scales: tuple[float, float] = (32.0, 5.0)) -> Figure:
    """The operator on a photograph, a detail and three points, from lambda = 1 (Gaussian) to 0 (Cauchy)."""
    from skimage.data import astronaut

    photo = torch.from_numpy(astronaut()[::2, ::2].copy()).float()[None] / 255  # (1, 256, 256, 3)
    points = torch.zeros(1, 256, 256, 1)
    points[0, [row for row, _ in POINTS], [column for _, column in POINTS]] = 1.0
    mixes = [(lam, 1 - lam) for lam in LAMBDAS]
    photos = [photo[0].numpy(), *(tailprop.tail_propagate(photo, scales, mix)[0].clamp(0, 1).numpy() for mix in mixes)]
    maps = [tailprop.tail_propagate(points, scales, mix)[0, ..., 0].numpy() for mix in mixes]
    part = _most_different(photos[1], photos[-1])
    figure = new_figure(10.5, 6.6)
    panels = figure.subplots(3, 5)
    for column, image in enumerate(photos):
        panels[0, column].imshow(image)
        panels[0, column].add_patch(Rectangle(part[::-1], DETAIL_PX, DETAIL_PX, fill=False, edgecolor=COLORS[4]))
        rows, columns = (slice(start, start + DETAIL_PX) for start in part)
        panels[1, column].imshow(image[rows, columns], interpolation="nearest")
    panels[0, 0].set_title("photograph")
    panels[1, 0].set_title("detail")
    _draw_points(panels[2, 0])
    for column, (lam, response) in enumerate(zip(LAMBDAS, maps, strict=True), start=1):
        name = {1.0: ", Gaussian", 0.0: ", Cauchy"}.get(lam, "")
        panels[0, column].set_title(f"$\\lambda$ = {lam:g}{name}")
        decades = np.log10(np.maximum(response / response.max(), 1e-5))
        drawn = panels[2, column].imshow(decades, cmap="magma", vmin=-4, vmax=0)
    for ax in panels.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    color_bar(figure, drawn, panels.ravel().tolist(), "three points: response / peak, log10")
    k_g, k_c = scales
    deviation = (2 * k_g) ** 0.5
    set_title(
        figure, f"Gaussian of standard deviation {deviation:g} px, Cauchy kernel of half-width {k_c:g} px; images of 256 px"
    )
    return figure


def _most_different(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> tuple[int, int]:
    """Row and column of the square of DETAIL_PX where the edges in two images differ most."""
    difference = np.abs(_edges(second) - _edges(first))
    total = np.pad(difference.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    n = DETAIL_PX
    sums = total[n:, n:] - total[:-n, n:] - total[n:, :-n] + total[:-n, :-n]
    row, column = np.unravel_index(int(sums.argmax()), sums.shape)
    return int(row), int(column)


def _edges(image: npt.NDArray[Any]) -> Array:
    gray = image.astype(np.float64).mean(2)
    return np.hypot(*np.gradient(gray))


def _draw_points(axes: "Axes") -> None:
    """The sources, drawn larger than the single pixels that they are."""
    axes.imshow(np.full((256, 256), -4.0), cmap="magma", vmin=-4, vmax=0)
    axes.scatter([column for _, column in POINTS], [row for row, _ in POINTS], s=26, color="white")
    axes.set_title("three points")


@look()
def draw_inside(folder: Path, classifier: ImageClassifier, most: int = 599) -> Figure:
    """Some digits with the network's answers, and the mean lambda of every layer over the images of each digit."""
    source = open_source(classifier.settings.data, "validation")
    images = [source.read(index) for index in range(min(most, len(source.labels)))]
    answers = classifier.predict_all(images)
    right = [answer.name == classifier.names[label] for answer, label in zip(answers, source.labels, strict=False)]
    lambdas, layers = _lambdas(folder, images)
    figure = new_figure(9.6, 6.6)
    halves: Any = figure.subfigures(2, 1, height_ratios=[1, 1.25])
    above, below = halves
    order = [*(i for i, ok in enumerate(right) if not ok), *range(len(images))][: SHOWN // 3]
    shown = [*order, *(i for i in range(len(images)) if i not in order)][:SHOWN]
    for axes, index in zip(above.subplots(2, SHOWN // 2).flat, shown, strict=True):
        _draw_answer(axes, images[index], answers[index], classifier.names[source.labels[index]])
    labels = source.labels[: len(images)]
    present = sorted(set(labels.tolist()))
    means = np.stack([lambdas[labels == digit].mean(0) for digit in present])
    _draw_lambdas(below, means, layers, [classifier.names[digit] for digit in present])
    wrong = f"{len(right) - sum(right)} of {len(right)} answers are wrong; some of them come first (orange)"
    set_title(figure, f"{folder.name}, {classifier.name}, handwritten digits that it was not trained on", wrong)
    return figure


def draw_field(folder: Path) -> Figure:
    """The effective receptive field of the trained network, beside that before training and that without the operator."""
    network = load_network(str(folder))
    source = open_source(load_classifier(folder).settings.data, "validation")
    images = [(str(index), source.read(index)) for index in range(FIELDS)]
    means, *_ = receptive_field.draw(Inputs((network,), None, given=images), lambda _share: None)
    return means.figure


def _lambdas(folder: Path, images: Sequence[Image.Image]) -> tuple[Array, list[str]]:
    """lambda of every image in every layer, (N, layers), and the names of the layers."""
    network = load_network(str(folder))
    found: dict[tuple[int, int], list[Tensor]] = {}
    for x in batches([network.prepare(image, 0)[0] for image in images], 64):
        network.visit(x, lambda i, j, op, given: found.setdefault((i, j), []).append(gate_of(op, op.explain(given))))
    keys = sorted(found)
    return np.stack([torch.cat(found[key]).double().numpy() for key in keys], axis=1), [f"{i + 1}.{j + 1}" for i, j in keys]


def _draw_answer(axes: "Axes", image: Image.Image, answer: Any, true: str) -> None:
    axes.imshow(image.convert("L"), cmap="gray")
    axes.axis("off")
    wrong = answer.name != true
    text = f"{answer.name} ({100 * answer.probability:.0f} %)" + (f", is {true}" if wrong else "")
    axes.set_title(text, color=COLORS[1] if wrong else "black", fontsize=9.5)


def _draw_lambdas(figure: Any, means: Array, layers: Sequence[str], names: Sequence[str]) -> None:
    axes = figure.subplots()
    middle = (means.max() + means.min()) / 2
    half = max(LEAST_RANGE, float(np.ptp(means))) / 2  # smaller differences are not blown up to the whole colour scale
    drawn = axes.imshow(means, aspect="auto", cmap="cividis", vmin=middle - half, vmax=middle + half)
    digits = 3 if np.ptp(means) > LEAST_RANGE else 4
    for row, column in np.ndindex(means.shape):
        color = "black" if means[row, column] > middle - 0.2 * half else "white"
        axes.text(column, row, f"{means[row, column]:.{digits}f}", ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(len(layers)), layers)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="stage.layer", ylabel="digit", title="mean \u03bb of the channels: 1 is Gaussian (near), 0 is Cauchy (far)")
    axes.spines[:].set_visible(False)
    color_bar(figure, drawn, axes, "\u03bb")
