"""The response to sources at the centre, between, and near a corner (Appendix I of the paper)."""

from typing import Any, Final

import numpy as np

from tailprop.studies.figures.inputs import Inputs, Picture, Tick
from tailprop.studies.figures.network import Network
from tailprop.studies.figures.propagate import draw_map, pick_layer, spread, suffix_of, sweep
from tailprop.tasks.common.look import color_bar, look, new_figure, set_title

__all__ = ["PLACES", "draw"]

PLACES: Final = {"centre": (0.5, 0.5), "mid-offset": (0.3, 0.65), "near corner": (0.08, 0.08)}  # shares of height and width


@look()
def draw(inputs: Inputs, tick: Tick) -> list[Picture]:
    networks = [group[0] for group in inputs.with_operators("sources").values()]
    pictures = []
    for network in networks:
        pictures.append(_picture(f"sources{suffix_of(inputs, network)}", network, inputs))
        tick(1 / len(networks))
    return pictures


def _picture(name: str, network: Network, inputs: Inputs) -> Picture:
    layer, side = pick_layer(network, inputs.stage), inputs.map_px
    mixes = sweep(layer.operator)
    figure = new_figure(1.6 + 1.65 * len(mixes), 6.0)
    panels = figure.subplots(len(PLACES), len(mixes), squeeze=False)
    rows: list[dict[str, Any]] = []
    for row, (place, (down, right)) in enumerate(PLACES.items()):
        source = (round(down * (side - 1)), round(right * (side - 1)))
        for column, mixed in enumerate(mixes):
            response = spread(layer, mixed, source, side)
            peak = float(np.abs(response).max())
            axes = panels[row, column]
            drawn = draw_map(axes, response, peak)
            axes.set_title(mixed.label if row == 0 else "")
            axes.set(xticks=[0, side - 1] if row == len(PLACES) - 1 else [], yticks=[0, side - 1] if column == 0 else [])
            axes.set_ylabel(f"{place}\ny, positions" if column == 0 else "")
            axes.set_xlabel("x, positions" if row == len(PLACES) - 1 else "")
            rows.append(_row(network, layer.name, place, source, mixed.label, response, peak))
    color_bar(figure, drawn, panels.ravel().tolist(), "|response| / peak, log10")
    set_title(figure, f"Sources through {layer.name} ({layer.describe_scales})", network.label)
    note = (
        f"{network.label}. As the impulse, for three sources; near a border the response is reflected, which is what the "
        "cosine transform does."
    )
    return Picture(name, "Controlled propagation of several sources", note, figure, rows)


def _row(
    network: Network, layer: str, place: str, source: tuple[int, int], label: str, response: Any, peak: float
) -> dict[str, Any]:
    far = response[::-1, ::-1][source]  # the position opposite to the source
    return {
        "checkpoint": network.path,
        "mixer": network.mixer,
        "layer": layer,
        "source": place,
        "row": source[0],
        "column": source[1],
        "setting": label,
        "peak": f"{peak:.6g}",
        "sum": f"{response.sum():.6g}",
        "opposite_over_peak": f"{abs(far) / peak:.6g}",
    }
