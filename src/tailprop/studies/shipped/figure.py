"""The figure of `tailprop shipped`: by how much each method improves the degraded images."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tailprop.studies.shipped.published import PUBLISHED
from tailprop.tasks.common.look import COLORS, HIDDEN, look, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_table"]

_ACROSS: Final = {"noise": "sigma of the noise", "jpeg": "JPEG quality"}
_STYLES: Final = {"BM3D": "--"}
_MARKERS: Final = "osD^vP"
Points = dict[tuple[str, str], dict[int, float]]  # (test set, method): {level: gain in dB}


@look()
def draw_table(rows: Sequence[dict[str, Any]]) -> "Figure":
    """The gain in PSNR over the input, by level: ours and BM3D as measured, others as published."""
    figure = new_figure(10, 4.4)
    present = [name for name in _ACROSS if any(row["degradation"] == name for row in rows)]
    for axes, degradation in zip(figure.subplots(1, len(present), squeeze=False)[0], present, strict=True):
        measured = _gains([row for row in rows if row["degradation"] == degradation])
        sets = list(dict.fromkeys(test_set for test_set, _ in measured))
        for (test_set, method), gains in measured.items():
            place = sets.index(test_set)
            _line(axes, gains, f"{method}, {test_set}", COLORS[place], _STYLES.get(method, "-"), _MARKERS[place])
        _draw_published(axes, degradation)
        levels = sorted({level for gains in measured.values() for level in gains})
        axes.set_xticks(levels, [str(level) for level in levels])
        axes.set(xlabel=_ACROSS[degradation], ylabel="PSNR over that of the input, dB")
        axes.grid()
        axes.legend(fontsize=8)
    return figure


def _gains(rows: Sequence[dict[str, Any]]) -> Points:
    found: Points = defaultdict(dict)
    for row in rows:
        found[row["test_set"], row["method"]][int(row["level"])] = float(row["psnr"]) - float(row["input_psnr"])
    return found


def _draw_published(axes: "Axes", degradation: str) -> None:
    found: Points = defaultdict(dict)
    for row in PUBLISHED:
        if row.degradation == degradation and row.method != "BM3D":
            found[row.test_set, row.method][row.level] = row.psnr - row.input_psnr
    for place, ((test_set, method), gains) in enumerate(found.items()):
        _line(axes, gains, f"{method}, {test_set} (its paper)", HIDDEN, ":", _MARKERS[-1 - place])


def _line(axes: "Axes", gains: dict[int, float], label: str, color: str, style: str, marker: str) -> None:
    levels = sorted(gains)
    values = [gains[level] for level in levels]
    axes.plot(levels, values, style, color=color, marker=marker, markersize=4, linewidth=1.3, label=label)
