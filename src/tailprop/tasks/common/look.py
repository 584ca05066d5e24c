"""The look of every figure: colours, sizes, fonts, colour bars, and writing to a file."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailprop.tasks.common.fonts import drawable, families_for, load_font
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
    "wrap",
]

# Okabe and Ito's colours, which people with every kind of colour vision can tell apart; the light ones come last.
COLORS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
GAUSSIAN, CAUCHY = COLORS[0], COLORS[1]  # in every figure of the operator
HIDDEN: Final = "#666666"  # of what is only there for orientation
DPI: Final = 120
_POINTS: Final = 72  # of an inch
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:px|%|dB|ms|images)(?!\w))")  # a number and its unit stay in one line

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
    width, size = figure.get_figwidth() - 0.2, _STYLE["figure.titlesize"]
    figure.suptitle("\n".join(plain(wrap(line, width, size)) for line in lines))


def wrap(text: str, width: float, size: float) -> str:
    """Break a text into lines of about the same length, none wider than `width` inches in a font of `size` points."""
    text, most = _UNIT.sub("\u00a0", drawable([text])[0]), width * _POINTS
    font = load_font(round(10 * size), text)  # ten times as large, because glyphs are measured in whole pixels

    def length(line: str) -> float:
        return font.getlength(line) / 10

    words = [part for word in text.split(" ") for part in _pieces(word, length, most)]
    count = len(_lines(words, length, most))
    while count > 1 and len(_lines(words, length, shorter := 0.95 * most)) == count and max(map(length, words)) <= shorter:
        most = shorter
    return "\n".join(_lines(words, length, most))


def _lines(words: Sequence[str], length: Callable[[str], float], most: float) -> list[str]:
    lines = [words[0]]
    for word in words[1:]:
        if length(longer := f"{lines[-1]} {word}") <= most:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _pieces(word: str, length: Callable[[str], float], most: float) -> list[str]:
    """A word that is wider than a line, in parts that are not."""
    pieces = [""]
    for character in word:
        if pieces[-1] and length(pieces[-1] + character) > most:
            pieces.append("")
        pieces[-1] += character
    return pieces


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
