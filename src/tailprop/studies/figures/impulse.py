"""The response to a centred impulse from lambda = 0 to 1 (Figure 4 of the paper)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tailprop.studies.figures.inputs import Inputs, Picture, Tick
from tailprop.studies.figures.propagate import DECADES, Case, closed_form, draw_each, draw_row, mix_color
from tailprop.tasks.common.look import HIDDEN, color_bar, look, new_figure, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "radial_decay", "rings"]

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
    return draw_each("impulse", "Controlled propagation of an impulse", inputs, tick, _draw)


def _draw(case: Case) -> Picture:
    source = (case.side // 2, case.side // 2)
    figure = new_figure(9.6, 5.4)
    top = [f"m{i}" for i in range(len(case.mixes))]
    layout: list[Any] = [top, ["r"] * len(top)]
    panels = figure.subplot_mosaic(layout, height_ratios=[1, 1.25])
    row = [panels[name] for name in top]
    maps, drawn = draw_row(row, case, source)
    for axes, mixed, response in zip(row, case.mixes, maps, strict=True):
        axes.set_title(f"{mixed.label}\n{_kept(response, source):.1f} % at the source")
    color_bar(figure, drawn, row, "|response| / peak, log10")
    rows = [case.key | values for values in _draw_decay(panels["r"], case, maps, source)]
    set_title(figure, f"Impulse through {case.subject}", case.network.label)
    note = (
        f"{case.network.label}. An impulse in the middle of an empty map of {case.side} x {case.side} positions through the "
        f"exact operator with the scales of {case.subject}, the one of its stage that reaches furthest"
        + ("; mean over its channels" if case.layer.scales.shape[1] > 1 else "")
        + ". Each response is divided by its peak; contours at 0.1, 0.01, 0.001 and 0.0001. The percentages are the part of "
        "the response that stays where it was: near 100 %, propagation is switched off."
    )
    return Picture(case.file, case.title, note, figure, rows)


def _kept(response: Array, source: tuple[int, int]) -> float:
    """The part of the response at the source itself, in per cent of the sum of absolute values."""
    return 100 * float(abs(response[source]) / np.abs(response).sum())


def rings(r: Array, values: Array) -> tuple[Array, Array]:
    """Means over rings of width 1 around the source: distances 0, 1, 2, ... and values."""
    ring = np.rint(r).astype(int)
    counts = np.bincount(ring)
    return np.flatnonzero(counts).astype(np.float64), np.bincount(ring, values)[counts > 0] / counts[counts > 0]


def _draw_decay(axes: "Axes", case: Case, maps: Sequence[Array], source: tuple[int, int]) -> list[dict[str, Any]]:
    rows, values = [], [mixed.value for mixed in case.mixes]
    lowest = 10.0 ** -(DECADES + 1)
    for mixed, response in zip(case.mixes, maps, strict=True):
        peak = np.abs(response).max()
        shares = np.abs(response) / peak
        r, decay = radial_decay(shares, source)
        distances, means = rings(r, decay)
        axes.plot(distances, np.maximum(means, lowest / 10), color=mix_color(mixed.value, values), label=mixed.label)
        closed = rings(r, closed_form(case.layer, mixed.value, r) / peak)[1] if case.layer.is_paper_s else None
        for place, (distance, share) in enumerate(zip(distances, means, strict=True)):
            exact = "" if closed is None else f"{closed[place]:.6g}"
            rows.append(dict(setting=mixed.label, distance=f"{distance:g}", response=f"{share:.6g}", closed_form=exact))
        if closed is not None and mixed.value in (0.0, 1.0) and closed[0] < 1.2:  # narrower kernels are not resolved
            label = "closed form, infinite plane" if mixed.value == 1 else None
            axes.plot(distances, np.maximum(closed, lowest / 10), ":", color=HIDDEN, linewidth=1.2, label=label)
    axes.set(yscale="log", ylim=(lowest, 2), xlim=(0, float(distances[-1])))
    axes.set(xlabel="distance from the source, positions", ylabel="|response| / peak")
    axes.grid()
    axes.legend(loc="upper right", ncols=2)
    return rows
