"""A point source through the exact operator with the scales of a trained layer, for several mixes.

Shapes: H, W the map of the source, C channels, K orders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailprop.backbone.operator import TailPropagation, tail_propagate
from tailprop.studies.figures.inputs import Inputs, Picture, Tick
from tailprop.studies.figures.network import Network
from tailprop.tasks.common.look import CAUCHY, GAUSSIAN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "DECADES",
    "LAMBDAS",
    "Case",
    "Layer",
    "Mixed",
    "closed_form",
    "draw_each",
    "draw_row",
    "mix_color",
    "pick_layer",
    "spread",
    "sweep",
]

Array = npt.NDArray[np.float64]
LAMBDAS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
ORDERS: Final = (1.0, 1.25, 1.5, 1.75, 2.0)  # for an operator that predicts its order, instead of the mixes
DECADES: Final = 5  # of the colour scale
CONTOURS: Final = (-4.0, -3.0, -2.0, -1.0)  # log10 of the response


@dataclass(frozen=True)
class Layer:
    """A trained operator, and where it is."""

    operator: TailPropagation
    stage: int  # from 1
    number: int  # from 1
    of: int  # layers of the stage

    @property
    def name(self) -> str:
        return f"stage {self.stage}, layer {self.number} of {self.of}"

    @property
    def scales(self) -> Tensor:  # (K, 1 or C), float64
        return self.operator.scales().detach().double()

    @property
    def is_paper_s(self) -> bool:
        """Whether it has the paper's form: a Gaussian and a Cauchy response, each with one scale."""
        operator = self.operator
        return operator.orders == (2.0, 1.0) and not operator.scale_per_channel and operator.order_mode == "fixed"

    @property
    def describe_scales(self) -> str:
        """The scales in words: numbers, or the range over the channels."""
        texts = []
        for order, scale in zip(self.operator.orders, self.scales, strict=True):
            name = {2.0: "k_G", 1.0: "k_C"}.get(order, f"k (\u03b1 = {order:g})")
            values = f"{scale.min():.3g} to {scale.max():.3g}" if len(scale) > 1 else f"{float(scale):.3g}"
            texts.append(f"{name} = {values}")
        return ", ".join(texts)


@dataclass(frozen=True)
class Mixed:
    """One setting of a sweep."""

    label: str
    value: float  # lambda or the order
    weights: tuple[float, ...]
    orders: Tensor | tuple[float, ...]


def pick_layer(network: Network, stage: int) -> Layer:
    """The layer with the longest reach of a stage, or of the last one if there are fewer stages."""
    stages = network.operators
    at = min(stage, len(stages)) - 1
    reaches = [float(operator.scales().detach().mean()) for operator in stages[at]]
    best = int(np.argmax(reaches))
    return Layer(stages[at][best], at + 1, best + 1, len(reaches))


def sweep(operator: TailPropagation) -> list[Mixed]:
    """Mixes from lambda = 0 to 1, the other orders sharing the rest; orders from 1 to 2 if only that is predicted."""
    count = len(operator.orders)
    if count == 1 and operator.order_mode == "fixed":
        return [Mixed(f"\u03b1 = {operator.orders[0]:g}", operator.orders[0], (1.0,), operator.orders)]
    if count == 1:
        return [Mixed(f"\u03b1 = {order:g}", order, (1.0,), (order,)) for order in ORDERS]
    orders = tuple(float(alpha) for name, alpha in operator.learned().items() if name.startswith("order_")) or operator.orders
    return [Mixed(f"\u03bb = {v:g}", v, (v, *[(1 - v) / (count - 1)] * (count - 1)), orders) for v in LAMBDAS]


def spread(layer: Layer, mixed: Mixed, source: tuple[int, int], side: int) -> Array:
    """The response to a source on an empty map, mean over channels, (H, W), by the exact operator in float64."""
    operator, scales = layer.operator, layer.scales
    x = torch.zeros(1, side, side, scales.shape[1], dtype=torch.float64)
    x[0, source[0], source[1]] = 1.0
    y = tail_propagate(x, scales, mixed.weights, mixed.orders, operator.spacing_of(x))  # without gains and normalization
    return y[0].mean(-1).numpy()


def closed_form(layer: Layer, lam: float, r: Array) -> Array:
    """Gaussian and Cauchy kernels of the plane, mixed: what the response is on a large map, for the paper's form."""
    k_g, k_c = (float(k) * layer.operator.spacing**-order for k, order in zip(layer.scales, (2, 1), strict=True))
    gaussian = np.exp(-(r**2) / (4 * k_g)) / (4 * np.pi * k_g)
    cauchy = k_c / (2 * np.pi * (k_c**2 + r**2) ** 1.5)
    return lam * gaussian + (1 - lam) * cauchy


@dataclass(frozen=True)
class Case:
    """What the figures of point sources are drawn from."""

    file: str  # name without suffix
    title: str
    network: Network
    layer: Layer
    mixes: list[Mixed]
    side: int  # of the map

    @property
    def key(self) -> dict[str, Any]:
        """The first columns of every row."""
        return {"checkpoint": self.network.path, "mixer": self.network.mixer, "layer": self.layer.name}

    @property
    def subject(self) -> str:
        return f"{self.layer.name} ({self.layer.describe_scales})"


def draw_each(figure: str, title: str, inputs: Inputs, tick: Tick, draw: Callable[[Case], Picture]) -> list[Picture]:
    """A picture for each network that has tail propagation, of the layer of `inputs.stage` that reaches furthest."""
    groups = inputs.with_operators(figure)
    pictures = []
    for group, suffix, named in zip(groups.values(), inputs.suffixes(figure), inputs.titled(title, figure), strict=True):
        layer = pick_layer(group[0], inputs.stage)
        pictures.append(draw(Case(figure + suffix, named, group[0], layer, sweep(layer.operator), inputs.map_px)))
        tick(1 / len(groups))
    return pictures


def draw_row(row: "Sequence[Axes]", case: Case, source: tuple[int, int], is_last: bool = True) -> tuple[list[Array], Any]:
    """|response| to a source over its peak on the shared log scale, with contours at fixed values, a panel for each mix.

    Returns the responses, and what a colour bar needs.
    """
    responses, ends = [spread(case.layer, mixed, source, case.side) for mixed in case.mixes], [0, case.side // 2, case.side - 1]
    for place, (axes, response) in enumerate(zip(row, responses, strict=True)):
        decades = np.log10(np.maximum(np.abs(response) / np.abs(response).max(), 10.0 ** -(DECADES + 1)))
        drawn = axes.imshow(decades, cmap="magma", vmin=-DECADES, vmax=0)
        if decades.min() < max(CONTOURS) < decades.max():
            axes.contour(decades, levels=CONTOURS, colors="white", linewidths=0.7, linestyles="solid")
        axes.set(xticks=ends if is_last else [], yticks=ends if place == 0 else [])
        axes.set(xlabel="x, positions" if is_last else "", ylabel="y, positions" if place == 0 else "")
    return responses, drawn


def mix_color(value: float, values: Sequence[float]) -> tuple[float, float, float]:
    """A colour between Cauchy's and Gaussian's."""
    from matplotlib.colors import to_rgb

    low, high = min(values), max(values)
    share = 0.5 if low == high else (value - low) / (high - low)
    first, last = to_rgb(CAUCHY), to_rgb(GAUSSIAN)
    r, g, b = ((1 - share) * a + share * b for a, b in zip(first, last, strict=True))
    return r, g, b
