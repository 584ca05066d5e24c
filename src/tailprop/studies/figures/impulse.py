"""The response to a centred impulse from lambda = 0 to 1 (Figure 4 of the paper)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tailprop.studies.figures.inputs import Inputs, Picture, Tick
from tailprop.studies.figures.network import Network
from tailprop.studies.figures.propagate import (
    DECADES,
    Layer,
    Mixed,
    closed_form,
    draw_map,
    mix_color,
    pick_layer,
    spread,
    suffix_of,
    sweep,
)
from tailprop.tasks.common.look import HIDDEN, color_bar, look, new_figure, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "radial_decay"]

Array = npt.NDArray[np.float64]


def radial_decay(response: Array, source: tuple[int, int]) -> tuple[Array, Array]:
    """Mean response at each distance from the source that occurs, up to the nearest border: distances and values."""
    rows, columns = np.indices(response.shape)
    squared = (rows - source[0]) ** 2 + (columns - source[1]) ** 2
    reach = min(*source, response.shape[0] - 1 - source[0], response.shape[1] - 1 - source[1])
    distances, place = np.unique(squared, return_inverse=True)
    means = np.bincount(place.ravel(), response.ravel()) / np.bincount(place.ravel())
    near = distances <= reach**2
    return np.sqrt(distances[near]), means[near]


@look()
def draw(inputs: Inputs, tick: Tick) -> list[Picture]:
    networks = [group[0] for group in inputs.with_operators("impulse").values()]
    pictures = []
    for network in networks:
        pictures.append(_picture(f"impulse{suffix_of(inputs, network)}", network, inputs))
        tick(1 / len(networks))
    return pictures


def _picture(name: str, network: Network, inputs: Inputs) -> Picture:
    layer, side = pick_layer(network, inputs.stage), inputs.map_px
    source, mixes = (side // 2, side // 2), sweep(pick_layer(network, inputs.stage).operator)
    maps = [spread(layer, mixed, source, side) for mixed in mixes]
    figure = new_figure(9.6, 5.4)
    top = [f"m{i}" for i in range(len(mixes))]
    layout: list[Any] = [top, ["r"] * len(mixes)]
    panels = figure.subplot_mosaic(layout, height_ratios=[1, 1.25])
    for panel, mixed, response in zip(top, mixes, maps, strict=True):
        drawn = draw_map(panels[panel], response, float(np.abs(response).max()))
        panels[panel].set_title(f"{mixed.label}\n{_kept(response, source):.1f} % at the source")
        panels[panel].set(xticks=[0, side // 2, side - 1], yticks=[0, side // 2, side - 1] if panel == "m0" else [])
        panels[panel].set_xlabel("x, positions")
    panels["m0"].set_ylabel("y, positions")
    color_bar(figure, drawn, [panels[panel] for panel in top], "|response| / peak, log10")
    rows = _draw_decay(panels["r"], layer, mixes, maps, source)
    set_title(figure, f"Impulse through {layer.name} ({layer.describe_scales})", network.label)
    note = (
        f"{network.label}. An impulse in the middle of an empty map of {side} x {side} positions through the exact operator "
        f"with the scales of {layer.name} ({layer.describe_scales}), the one of its stage that reaches furthest"
        + ("; mean over its channels" if layer.scales.shape[1] > 1 else "")
        + ". Each response is divided by its peak; contours at 0.1, 0.01, 0.001 and 0.0001. The percentages are the part of "
        "the response that stays where it was: near 100 %, propagation is switched off."
    )
    common = {"checkpoint": network.path, "mixer": network.mixer, "layer": layer.name}
    return Picture(name, "Controlled propagation of an impulse", note, figure, [common | row for row in rows])


def _kept(response: Array, source: tuple[int, int]) -> float:
    """The part of the response at the source itself, in per cent of the sum of absolute values."""
    return 100 * float(abs(response[source]) / np.abs(response).sum())


def _rings(r: Array, decay: Array, lowest: float) -> tuple[Array, Array]:
    """Means over rings of width 1, for a smooth line: distance and value."""
    ring = np.rint(r).astype(int)
    counts = np.bincount(ring)
    means = np.bincount(ring, decay) / np.maximum(counts, 1)
    return np.arange(len(counts))[counts > 0].astype(np.float64), np.maximum(means[counts > 0], lowest / 10)


def _draw_decay(
    axes: "Axes", layer: Layer, mixes: Sequence[Mixed], maps: Sequence[Array], source: tuple[int, int]
) -> list[dict[str, Any]]:
    rows, values = [], [mixed.value for mixed in mixes]
    lowest = 10.0 ** -(DECADES + 1)
    for mixed, response in zip(mixes, maps, strict=True):
        shares = np.abs(response) / np.abs(response).max()
        r, decay = radial_decay(shares, source)
        axes.plot(*_rings(r, decay, lowest), color=mix_color(mixed.value, values), label=mixed.label)
        closed = closed_form(layer, mixed.value, r) / np.abs(response).max() if layer.is_paper_s else None
        for place, (distance, share) in enumerate(zip(r, decay, strict=True)):
            exact = "" if closed is None else f"{closed[place]:.6g}"
            rows.append(dict(setting=mixed.label, distance=f"{distance:.4f}", response=f"{share:.6g}", closed_form=exact))
        if closed is not None and mixed.value in (0.0, 1.0) and closed[0] < 1.2:  # narrower kernels are not resolved
            label = "closed form, infinite plane" if mixed.value == 1 else None
            axes.plot(r, np.maximum(closed, lowest / 10), ":", color=HIDDEN, linewidth=1.2, label=label)
    axes.set(yscale="log", ylim=(lowest, 2), xlim=(0, float(r.max())))
    axes.set(xlabel="distance from the source, positions", ylabel="|response| / peak")
    axes.grid()
    axes.legend(loc="upper right", ncols=2)
    return rows
