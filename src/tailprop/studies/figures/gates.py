"""Images with relatively low, intermediate and high lambda, and the responses they induce (Figure 3 of the paper)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailprop.backbone.operator import TailPropagation
from tailprop.studies.figures.gate import HIGHEST, gate_name, gate_of, responses_at
from tailprop.studies.figures.inputs import Inputs, Picture, Sample, Tick
from tailprop.studies.figures.network import Network, batches
from tailprop.studies.figures.propagate import mix_color
from tailprop.tasks.common.look import HIDDEN, look, new_figure, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "pick", "widest_interval"]

Array = npt.NDArray[np.float64]
POINTS = 241  # frequencies of a curve
PICKED = ("low", "intermediate", "high")
STYLES = ("-", "--", ":")
PICKED_COLORS = tuple(mix_color(share, (0, 1)) for share in (0, 0.5, 1))  # low lambda is Cauchy, high lambda is Gaussian
FREQUENCY = r"frequency $\sqrt{\rho}$, rad / position"
WIDTH = 0.15  # of the enlarged interval, as a share of the axis


@dataclass(frozen=True)
class Gates:
    """Values of every image, and curves of the picked ones."""

    name: str  # lambda, or the order
    values: list[Array]  # by stage: (N,), mean over layers and channels
    picked: tuple[int, ...]  # indices of the low, intermediate and high image
    curves: list[Array]  # by stage: (3, POINTS), mean over layers and channels


def pick(values: Array) -> tuple[int, int, int]:
    """Indices of the lowest, the median and the highest value."""
    order = np.argsort(values, kind="stable")
    return int(order[0]), int(order[len(order) // 2]), int(order[-1])


def widest_interval(low: Array, high: Array, width: float = WIDTH) -> tuple[int, int]:
    """First and last index of the interval, a share `width` of all, where two curves differ most on average."""
    count = max(2, round(width * len(low)))
    sums = np.convolve(np.abs(high - low), np.ones(count), mode="valid")
    first = int(np.argmax(sums))
    return first, first + count - 1


@look()
def draw(inputs: Inputs, tick: Tick) -> list[Picture]:
    groups = inputs.with_operators("gates")
    pictures = []
    titles = inputs.titled("Gates of single images", "gates")
    for group, suffix, title in zip(groups.values(), inputs.suffixes("gates"), titles, strict=True):
        network, samples = group[0], inputs.samples(group[0])
        gates = _measure(network, samples, lambda done: tick(done / len(groups)))
        pictures.append(_picture((f"gates{suffix}", title), network, samples, gates))
    return pictures


def _measure(network: Network, samples: Sequence[Sample], tick: Tick) -> Gates:
    found: dict[tuple[int, int], list[Tensor]] = {}

    def keep(stage: int, layer: int, operator: TailPropagation, x: Tensor) -> None:
        found.setdefault((stage, layer), []).append(gate_of(operator, operator.explain(x)).double())

    for x in batches([sample.x for sample in samples]):
        network.visit(x, keep)
        tick(len(x) / len(samples))
    stages = sorted({stage for stage, _ in found})
    values = [np.mean([torch.cat(v).numpy() for (s, _), v in found.items() if s == stage], axis=0) for stage in stages]
    picked = pick(np.mean(values, axis=0))
    curves = _curves(network, torch.stack([samples[index].x for index in picked]))
    return Gates(gate_name(next(o for stage in network.operators for o in stage)), values, picked, curves)


def _curves(network: Network, x: Tensor) -> list[Array]:
    frequencies = torch.linspace(0, HIGHEST, POINTS)
    found: dict[int, list[Array]] = {}

    def keep(stage: int, _layer: int, operator: TailPropagation, x: Tensor) -> None:
        found.setdefault(stage, []).append(responses_at(operator, x, frequencies).double().numpy())

    network.visit(x, keep)
    return [np.mean(found[stage], axis=0) for stage in sorted(found)]


def _picture(names: tuple[str, str], network: Network, samples: Sequence[Sample], gates: Gates) -> Picture:
    widest = max(range(len(gates.curves)), key=lambda s: float(np.abs(gates.curves[s][2] - gates.curves[s][0]).max()))
    figure = new_figure(7.8, 6.4)
    panels = figure.subplot_mosaic([list("aabbcc"), list("AABBCC"), list("ssssii")], height_ratios=[1.0, 0.75, 1.6])
    most = max(float(v.max()) for v in gates.values)
    digits = _digits(gates)
    for place, (word, index) in enumerate(zip(PICKED, gates.picked, strict=True)):
        mean = float(np.mean([values[index] for values in gates.values]))
        image = panels["abc"[place]]
        image.imshow(samples[index].shown, cmap="gray")
        image.set_title(f"{word} {gates.name} = {mean:.{digits}f}")
        image.axis("off")
        bars = _draw_bars(panels["ABC"[place]], [float(v[index]) for v in gates.values], PICKED_COLORS[place], most)
        panels["ABC"[place]].bar_label(bars, fmt=f"{{:.{digits}f}}", fontsize=9 if digits < 4 else 8, padding=1)
        panels["ABC"[place]].set_ylabel(gates.name if place == 0 else "")
    _draw_curves(panels["s"], panels["i"], gates, widest)
    set_title(figure, network.label)
    spread = max(float(v.max() - v.min()) for v in gates.values)
    note = (
        f"{network.label}. The images with the lowest, the median and the highest {gates.name} (mean of all layers and "
        f"channels) among {len(samples)}, its value in every stage, and the response that it induces in stage {widest + 1}, "
        f"where the low and the high image differ most. Over the images {gates.name} varies by at most {spread:.4f} in a stage"
        + (": it does not depend on the image." if spread < 1e-6 else ".")
    )
    return Picture(*names, note, figure, _rows(network, samples, gates, widest))


def _digits(gates: Gates) -> int:
    """Decimals with which the picked images differ: 3, or up to 5 where the gate hardly depends on the image."""
    means = np.mean(gates.values, axis=0)[list(gates.picked)]
    difference = float(np.ptp(means))
    return 3 if difference > 5e-3 or difference < 1e-6 else 4 if difference > 5e-4 else 5


def _draw_bars(axes: "Axes", values: Sequence[float], color: Any, most: float) -> Any:
    top = 1 if most <= 1 else 2  # of lambda and of an order
    axes.set(xticks=range(1, len(values) + 1), yticks=(0, top / 2, top), ylim=(0, 1.2 * top), xlabel="stage")
    axes.spines["left"].set_bounds(0, top)
    return axes.bar(range(1, len(values) + 1), values, 0.6, color=color)


def _draw_curves(axes: "Axes", beside: "Axes", gates: Gates, stage: int) -> None:
    """The responses, and beside them the interval where they differ most: an inset would hide curves of some networks."""
    frequencies, curves = np.linspace(0, HIGHEST, POINTS), gates.curves[stage]
    first, last = widest_interval(curves[0], curves[2])
    for place, word in enumerate(PICKED):
        axes.plot(frequencies, curves[place], STYLES[place], color=PICKED_COLORS[place], label=f"{word} {gates.name}")
    axes.set(xlabel=FREQUENCY, ylabel=f"response, stage {stage + 1}")
    axes.set(xlim=(0, HIGHEST), ylim=(0, 1.08 * max(1.0, float(curves.max()))))
    axes.axvspan(frequencies[first], frequencies[last], color=HIDDEN, alpha=0.12, linewidth=0)
    axes.legend()
    _enlarge(beside, frequencies[first : last + 1], curves[:, first : last + 1])


def _enlarge(axes: "Axes", frequencies: Array, curves: Array) -> None:
    """An interval enlarged; differences from the intermediate image where the curves would lie on each other."""
    hidden = float(np.abs(curves[2] - curves[0]).max()) < 0.05 * float(np.ptp(curves))
    for place in range(len(PICKED)):
        shown = curves[place] - curves[1] if hidden else curves[place]
        axes.plot(frequencies, shown, STYLES[place], color=PICKED_COLORS[place])
    axes.set(title="shaded: low and high\ndiffer most", xlabel=FREQUENCY, xlim=(frequencies[0], frequencies[-1]))
    axes.set_ylabel("response minus intermediate" if hidden else "response")
    axes.locator_params(axis="x", nbins=4)
    axes.ticklabel_format(axis="y", scilimits=(-3, 3))


def _rows(network: Network, samples: Sequence[Sample], gates: Gates, drawn: int) -> list[dict[str, Any]]:
    """A row for each stage of the picked images, and one for each frequency of the stage whose responses are drawn."""
    rows: list[dict[str, Any]] = []
    frequencies = np.linspace(0, HIGHEST, POINTS)
    for place, (word, index) in enumerate(zip(PICKED, gates.picked, strict=True)):
        row = {"checkpoint": network.path, "mixer": network.mixer, "image": samples[index].name, "picked": word}
        for stage, values in enumerate(gates.values, start=1):
            rows.append(row | dict(stage=stage, quantity=gates.name, frequency="", value=f"{values[index]:.6g}"))
        for f, value in zip(frequencies, gates.curves[drawn][place], strict=True):
            rows.append(row | dict(stage=drawn + 1, quantity="response", frequency=f"{f:.5f}", value=f"{value:.6g}"))
    return rows
