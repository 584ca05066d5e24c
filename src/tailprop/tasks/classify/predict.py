"""`tailprop predict`: what a checkpoint sees in pictures."""

import csv
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from torch import Tensor

from tailprop.backbone.model import MIN_SIZE_PX
from tailprop.data.broken import Broken
from tailprop.data.images import is_picture, list_pictures, quiet_pillow, read_ahead, read_picture
from tailprop.data.loader import to_device
from tailprop.engine.options import Checkpoint
from tailprop.runtime.distributed import together
from tailprop.runtime.precision import autocast
from tailprop.tasks.classify.load import Classifier, load_classifier
from tailprop.tasks.common.predict import Skipped, say
from tailprop.utils.files import write_atomically
from tailprop.utils.text import counted, printable
from tailprop.utils.validation import check_at_least, check_output_file

__all__ = ["Guess", "Predict", "Prediction", "classify_pictures", "run"]

_WIDE = 100_000  # characters; a table that no terminal shows is never folded


@dataclass(frozen=True)
class Predict:
    """Classify pictures."""

    checkpoint: Checkpoint
    """A run folder, a file of weights, or the name of a pretrained timm model."""
    pictures: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PICTURES")]
    """Files, folders (searched with all folders below), or globs such as 'photos/*.jpg' in quotes."""
    top: int = 5
    """How many classes to name for each picture."""
    format: Literal["table", "csv", "json"] | None = None
    """How to write the answer; none = by the suffix of --out, else a table."""
    out: Path | None = None
    """File for the answer; none = standard output."""
    model: str | None = None
    """The architecture, if the file does not say."""
    size_px: int | None = None
    """Side of the pictures; none = what the checkpoint was made for."""
    batch: int = 32
    """Pictures at once."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast type."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to run."""
    on_broken: Literal["skip", "stop"] = "skip"
    """A picture that cannot be read: name it on standard error and go on, or stop."""

    def check(self) -> None:
        check_at_least("top", self.top, 1)
        check_at_least("batch", self.batch, 1)
        if self.size_px is not None:
            check_at_least("size_px", self.size_px, MIN_SIZE_PX)
        check_output_file("--out", self.out)
        if self.out is not None and is_picture(self.out):  # a forgotten name would cost the picture after --out
            raise ValueError(f"--out {self.out} is named like a picture; the answer is text: .csv, .json or .txt")

    @property
    def written_as(self) -> Literal["table", "csv", "json"]:
        suffix = "" if self.out is None else self.out.suffix.lower()
        return self.format or ("csv" if suffix == ".csv" else "json" if suffix == ".json" else "table")


@dataclass(frozen=True)
class Guess:
    """A class and how probable the model finds it, 0 to 1."""

    index: int
    name: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """A picture and the most probable classes, best first."""

    picture: str
    guesses: tuple[Guess, ...]


def run(options: Predict) -> None:
    options.check()
    with together(options.device) as world:
        if world.is_first:  # under torchrun one process answers, once
            paths = list_pictures(options.pictures)
            classifier = load_classifier(options.checkpoint, options.model, options.size_px)
            _write(_classify_visibly(options, classifier, paths, world.device), options)


def classify_pictures(
    classifier: Classifier,
    paths: Sequence[Path],
    device: torch.device,
    on_broken: Callable[[Broken], object],
    top: int = 5,
    batch: int = 32,
    precision: str = "fp32",
    tick: Callable[[int], object] = lambda _count: None,
) -> list[Prediction]:
    """The most probable classes of every picture that can be read, in order.

    Args:
        on_broken: Told of each picture that cannot be read; may raise.
        tick: Told the number of pictures of each batch, for a progress bar.
    """
    model, read = classifier.model.to(device), _reader(classifier)
    predictions: list[Prediction] = []
    with torch.inference_mode(), autocast(device, precision), quiet_pillow():
        for examples in read_ahead(paths, read, batch):
            good: list[tuple[Path, Tensor]] = []
            for path, image in examples:
                if isinstance(image, Broken):
                    on_broken(image)
                else:
                    good.append((path, image))
            if good:
                read_paths, images = zip(*good, strict=True)
                logits = model(to_device(torch.stack(images), device)).float().cpu()
                predictions += _best(read_paths, logits, classifier.classes, top)
            tick(len(examples))
    return predictions


def _reader(classifier: Classifier) -> Callable[[Path], Tensor | Broken]:
    mode, transform = classifier.mode, classifier.transform()

    def read(path: Path) -> Tensor | Broken:
        picture = read_picture(path, mode)
        return picture if isinstance(picture, Broken) else transform(picture)

    return read


def _best(paths: Sequence[Path], logits: Tensor, classes: Sequence[str], top: int) -> list[Prediction]:
    bad = (~logits.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if bad:
        raise ValueError(
            f"the model's answer to {paths[bad[0]]} is not finite; use --precision fp32, and if it is, its weights are damaged"
        )
    values, indices = logits.softmax(dim=1).topk(min(top, logits.shape[1]), dim=1)  # (B, top)
    return [
        Prediction(str(path), tuple(Guess(i, classes[i], _rounded(p)) for i, p in zip(row, chances, strict=True)))
        for path, row, chances in zip(paths, indices.tolist(), values.tolist(), strict=True)
    ]


def _rounded(value: float) -> float:
    return float(f"{value:.7g}")  # single precision knows no more digits


def _classify_visibly(
    options: Predict, classifier: Classifier, paths: Sequence[Path], device: torch.device
) -> list[Prediction]:
    console = Console(stderr=True)
    skipped = Skipped(console, options.on_broken, len(paths))
    visible = console.is_terminal and len(paths) > options.batch
    with Progress(console=console, disable=not visible, transient=True) as progress:
        bar = progress.add_task("classifying", total=len(paths))

        def tick(count: int) -> None:
            progress.advance(bar, count)

        predictions = classify_pictures(
            classifier, paths, device, skipped.add, options.top, options.batch, options.precision, tick
        )
    if skipped.broken:
        counts = f"{len(skipped.broken)} of {counted(len(paths), 'picture')} skipped, {len(predictions)} classified"
        say(console, counts)
    return predictions


def _write(predictions: Sequence[Prediction], options: Predict) -> None:
    if options.out is None:
        console = Console()
        text = _render(predictions, options.written_as, console if console.is_terminal else Console(width=_WIDE))
        encoding = sys.stdout.encoding or "utf-8"  # what it cannot say is escaped: no answer is lost to a file name
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return
    text = _render(predictions, options.written_as, Console(file=io.StringIO(), width=_WIDE, force_terminal=False))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode("utf-8", "surrogateescape")  # file names byte for byte as the system has them
    write_atomically(options.out, lambda part: part.write_bytes(content))
    # On standard error: the other is for answers, and --out may be /dev/stdout.
    say(Console(stderr=True), f"{options.out}: {counted(len(predictions), 'picture')}")


def _render(predictions: Sequence[Prediction], written_as: Literal["table", "csv", "json"], console: Console) -> str:
    if written_as == "csv":
        return _as_csv(predictions)
    if written_as == "json":
        return _as_json(predictions)
    with console.capture() as captured:
        console.print(_as_table(predictions))
    return captured.get()


def _as_table(predictions: Sequence[Prediction]) -> Table:
    """A line for each class, the best in bold: names of any length stay readable in a narrow terminal."""
    table = Table("picture", "class", "%")
    table.columns[0].overflow = table.columns[1].overflow = "fold"
    table.columns[2].justify = "right"
    for prediction in predictions:
        for rank, guess in enumerate(prediction.guesses):
            cells = (printable(prediction.picture) if rank == 0 else "", guess.name, f"{100 * guess.probability:.2f}")
            table.add_row(*(Text(cell) for cell in cells), style="bold" if rank == 0 else None)  # Text: [x] is no markup
    return table


def _as_csv(predictions: Sequence[Prediction]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["picture", "rank", "class_index", "class_name", "probability"])
    for prediction in predictions:
        for rank, guess in enumerate(prediction.guesses, start=1):
            writer.writerow([prediction.picture, rank, guess.index, guess.name, guess.probability])
    return buffer.getvalue()


def _as_json(predictions: Sequence[Prediction]) -> str:
    rows = [dict(picture=p.picture, predictions=[vars(guess) for guess in p.guesses]) for p in predictions]
    return json.dumps(rows, indent=2) + "\n"
