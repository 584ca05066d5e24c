"""What `tailprop predict` writes for a classifier: a table, CSV, JSON, a contact sheet. Nothing here imports PyTorch."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tailprop.data.images import read_image
from tailprop.tasks.classify.options import ClassifyPredict
from tailprop.tasks.common.pages import draw_page, with_caption
from tailprop.tasks.common.progress import print_line
from tailprop.utils.files import make_folder, write_atomically
from tailprop.utils.terminal import Console, Table
from tailprop.utils.text import counted, printable

__all__ = ["ClassScore", "Prediction", "rounded", "write_predictions"]

_WIDE = 100_000  # characters; a table that is not for a terminal is never wrapped
_SHEET = 48  # images on a contact sheet


@dataclass(frozen=True)
class ClassScore:
    """A class and its predicted probability."""

    index: int  # class index, the position in the model's output
    name: str  # class name
    probability: float  # softmax probability, 0 to 1


def rounded(value: float) -> float:
    """A probability with the digits of single precision."""
    return float(f"{value:.7g}")


@dataclass(frozen=True)
class Prediction:
    """An image and the most probable classes, best first."""

    image: str  # path
    classes: tuple[ClassScore, ...]  # most probable first


def write_predictions(predictions: Sequence[Prediction], options: ClassifyPredict, title: str) -> None:
    """Write or print the predictions as the options say, and a contact sheet with this title."""
    _write(predictions, options)
    if options.sheet is not None:
        _draw_sheet(predictions[:_SHEET], options.sheet, title)


def _write(predictions: Sequence[Prediction], options: ClassifyPredict) -> None:
    if options.out is None:
        console = Console()
        encoding = sys.stdout.encoding or "utf-8"  # a file name that it cannot encode is escaped
        is_utf8 = encoding.lower().replace("-", "") == "utf8"
        shown_on = console if console.is_terminal else Console(width=_WIDE)
        text = (
            _as_json(predictions, not is_utf8)
            if options.written_as == "json"
            else _render(predictions, options.written_as, shown_on, escaped=True)
        )
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return
    plain = Console(file=io.StringIO(), width=_WIDE, force_terminal=False)
    is_stream = options.out.exists() and not options.out.is_file()  # /dev/stdout may be a terminal
    text = _render(predictions, options.written_as, plain, escaped=is_stream)
    make_folder(options.out.parent)
    content = text.encode("utf-8", "surrogateescape")  # file names with the system's bytes
    write_atomically(options.out, lambda part: part.write_bytes(content))
    # On standard error: standard output is for predictions, and --out may be /dev/stdout.
    print_line(Console(stderr=True), f"{options.out}: {counted(len(predictions), 'image')}")


def _render(predictions: Sequence[Prediction], written_as: str, console: Console, escaped: bool) -> str:
    if written_as == "csv":
        return _as_csv(predictions, escaped)
    if written_as == "json":
        return _as_json(predictions)
    with console.capture() as captured:
        console.print(_as_table(predictions))
    return captured.get()


def _as_table(predictions: Sequence[Prediction]) -> Table:
    """One line for each class, the best in bold: long names stay readable in a narrow terminal."""
    table = Table("image", "class", "%")
    table.columns[0].overflow = table.columns[1].overflow = "fold"
    table.columns[2].justify = "right"
    for prediction in predictions:
        for rank, score in enumerate(prediction.classes):
            cells = (prediction.image if rank == 0 else "", score.name, f"{100 * score.probability:.2f}")
            table.add_row(*cells, style="bold" if rank == 0 else None)
    return table


def _as_csv(predictions: Sequence[Prediction], escaped: bool) -> str:
    """A line for each class; `escaped` for a terminal. In a file, names are as they are."""
    shown = printable if escaped else str
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["image", "rank", "class_index", "class_name", "probability"])
    for prediction in predictions:
        for rank, score in enumerate(prediction.classes, start=1):
            writer.writerow([shown(prediction.image), rank, score.index, shown(score.name), score.probability])
    return buffer.getvalue()


def _as_json(predictions: Sequence[Prediction], ascii_only: bool = False) -> str:
    rows = [dict(image=p.image, predictions=[vars(score) for score in p.classes]) for p in predictions]
    text = json.dumps(rows, indent=2, ensure_ascii=ascii_only) + "\n"
    return "".join(c if c == "\n" or printable(c) == c else json.dumps(c)[1:-1] for c in text)  # as JSON escapes


def _draw_sheet(predictions: Sequence[Prediction], path: Path, title: str) -> None:
    tiles = []
    for prediction in predictions:
        image = read_image(Path(prediction.image), "RGB")
        if isinstance(image, Image.Image):
            lines = [f"{score.name}: {100 * score.probability:.0f} %" for score in prediction.classes[:2]]
            tiles.append(with_caption(image, [Path(prediction.image).name, *lines]))
    draw_page(tiles, path, columns=min(6, max(1, len(tiles))), width_px=240, title=title)
    print_line(Console(stderr=True), f"{path}: contact sheet of {counted(len(tiles), 'image')}")
