"""The look of every figure: colours, sizes, fonts, colour bars, and writing to a file."""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailprop.tasks.common.fonts import drawable, families_for
from tailprop.utils.files import make_folder, write_atomically

if TYPE_CHECKING:  # matplotlib is slow to import, and most commands draw nothing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CAUCHY",
    "COLORS",
    "GAUSSIAN",
    "HIDDEN",
    "color_bar",
    "look",
    "name_panels",
    "new_figure",
    "plain",
    "save_figure",
    "set_title",
]

# Okabe and Ito's colours, which people with every kind of colour vision can tell apart; the light ones come last.
COLORS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
GAUSSIAN, CAUCHY = COLORS[0], COLORS[1]  # in every figure of the operator
HIDDEN: Final = "#666666"  # of what is only there for orientation
DPI: Final = 120

_STYLE: Final[dict[str, Any]] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "figure.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "image.cmap": "viridis",
    "pdf.fonttype": 42,  # TrueType, so that text in a PDF stays text
}


@contextmanager
def look() -> Iterator[None]:
    """The project's look while something is drawn; as a decorator, `@look()`, for a whole function."""
    import matplotlib
    from cycler import cycler

    style: Any = {**_STYLE, "axes.prop_cycle": cycler(color=COLORS)}
    with matplotlib.rc_context(style):
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure in inches. Figures are 7 to 10 inches wide, so that their text is readable at the width of a page."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06))
    FigureCanvasAgg(figure)  # needs no display
    return figure


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure in the format of its suffix, in a folder that is created if needed."""
    make_folder(path.parent)
    _choose_fonts(figure)
    kind = path.suffix.lower().lstrip(".") or "png"
    write_atomically(path, lambda part: figure.savefig(part, dpi=DPI, format=kind))


def _choose_fonts(figure: "Figure") -> None:
    """Let names be drawn in any script that an installed font has."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if isinstance(text, Text) and not text.get_text().isascii():
            text.set_fontfamily(families_for([text.get_text()]))


def set_title(figure: "Figure", *lines: str) -> None:
    """A title above all panels; lines that are wider than the figure are wrapped."""
    most = int(10.5 * figure.get_figwidth())  # characters
    figure.suptitle("\n".join(textwrap.fill(plain(line), most) for line in lines))


def color_bar(figure: "Figure", drawn: Any, axes: "Axes | Sequence[Axes]", label: str) -> None:
    """A colour bar for an image, beside one or several panels."""
    bar = figure.colorbar(drawn, ax=axes, shrink=0.9, pad=0.02, aspect=25)
    bar.set_label(label)
    bar.outline.set_visible(False)


def name_panels(panels: "Sequence[Axes]") -> None:
    """Letters (a), (b), ... before the titles of panels."""
    for letter, axes in zip("abcdefgh", panels, strict=False):
        axes.set_title(f"({letter}) {axes.get_title()}", loc="left")
        axes.set_title("")


def plain(text: str) -> str:
    """A name for a figure: characters that no font has are boxes, and a dollar sign in it is not the start of a formula."""
    return drawable([text])[0].replace("$", r"\$")
