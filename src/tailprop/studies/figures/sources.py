"""The response to sources at the centre, between, and near a corner (Appendix I of the paper)."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tailprop.studies.figures.inputs import Inputs, Picture, Tick
from tailprop.studies.figures.propagate import Case, draw_each, draw_row
from tailprop.tasks.common.look import color_bar, look, new_figure, set_title

__all__ = ["PLACES", "draw"]

PLACES: Final = {"centre": (0.5, 0.5), "mid-offset": (0.3, 0.65), "near corner": (0.08, 0.08)}  # shares of height and width


@look()
def draw(inputs: Inputs, tick: Tick) -> list[Picture]:
    return draw_each("sources", "Controlled propagation of several sources", inputs, tick, _draw)


def _draw(case: Case) -> Picture:
    figure = new_figure(1.6 + 1.65 * len(case.mixes), 6.0)
    panels = figure.subplots(len(PLACES), len(case.mixes), squeeze=False)
    rows: list[dict[str, Any]] = []
    for row, (place, (down, right)) in zip(panels, PLACES.items(), strict=True):
        source = (round(down * (case.side - 1)), round(right * (case.side - 1)))
        responses, drawn = draw_row(row, case, source, is_last=place == list(PLACES)[-1])
        row[0].set_ylabel(f"{place}\ny, positions")
        for mixed, response in zip(case.mixes, responses, strict=True):
            rows.append(
                case.key | dict(source=place, row=source[0], column=source[1], setting=mixed.label) | _values(response, source)
            )
    for axes, mixed in zip(panels[0], case.mixes, strict=True):
        axes.set_title(mixed.label)
    color_bar(figure, drawn, panels.ravel().tolist(), "|response| / peak, log10")
    set_title(figure, f"Sources through {case.subject}", case.network.label)
    note = (
        f"{case.network.label}. As the impulse, for three sources; near a border the response is reflected, which is what the "
        "cosine transform does."
    )
    return Picture(case.file, case.title, note, figure, rows)


def _values(response: npt.NDArray[np.float64], source: tuple[int, int]) -> dict[str, str]:
    peak = np.abs(response).max()
    opposite = abs(response[::-1, ::-1][source])  # at the position opposite to the source
    return {"peak": f"{peak:.6g}", "sum": f"{response.sum():.6g}", "opposite_over_peak": f"{opposite / peak:.6g}"}
