"""`tailprop eval`: top-1 and top-5 of a checkpoint on any data."""

import sys
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tailprop.data.broken import Damage
from tailprop.data.loader import make_loader
from tailprop.data.samplers import EvalOrder
from tailprop.engine.options import Checkpoint
from tailprop.runtime.distributed import World, together
from tailprop.runtime.precision import autocast
from tailprop.tasks.classify.data import DataConfig, Pictures, collate, open_source
from tailprop.tasks.classify.figures import CONFUSION_CLASSES, draw_confusion
from tailprop.tasks.classify.load import Classifier, load_classifier
from tailprop.tasks.classify.metrics import Accuracy, evaluate_classifier
from tailprop.tasks.classify.sources import Folder, Source, check_labels, tell_apart
from tailprop.utils.files import write_json
from tailprop.utils.text import counted
from tailprop.utils.validation import check_at_least, check_output_file

__all__ = ["DataChoice", "Eval", "align_classes", "evaluate_on", "run"]


_DRAWN = (".png", ".jpg", ".pdf", ".svg")


@dataclass(frozen=True)
class DataChoice:
    """Other data than the checkpoint was trained on; what is not given stays as in its run."""

    source: Literal["folder", "parquet", "timm", "digits"] | None = None
    """folder: one folder for each class; parquet: a Hugging Face snapshot; timm: a dataset by name; digits: embedded."""
    root: Path | None = None
    """Where the pictures are."""
    name: str | None = None
    """timm's name of the dataset, for source timm."""
    size_px: int | None = None
    """Side of the pictures."""
    resize_px: int | None = None
    """Shorter side before the central crop."""
    on_broken: Literal["skip", "stop"] | None = None
    """A picture that cannot be read: skip and count it, or stop."""
    held_out: float | None = None
    """Share measured of a folder without a split; none = all of it, or in the run's own folder what it held out."""
    unpack: bool | None = None
    """Unpack parquet shards into a cache once instead of reading them in place."""
    cache: Path | None = None
    """Where parquet shards are unpacked, if they are; none = the cache of the datasets library."""
    download: bool | None = None
    """Let timm download the dataset."""
    workers: int | None = None
    """Loader processes."""

    def over(self, data: DataConfig, split: str = "validation") -> DataConfig:
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if "size_px" in given and "resize_px" not in given:
            given["resize_px"] = round(given["size_px"] * (data.resize_px or data.size_px) / data.size_px)
        if "root" in given and "source" not in given and data.source not in ("folder", "parquet"):
            given["source"] = "folder"
        is_own = data.root is not None and "root" in given and given["root"].resolve() == data.root.resolve()
        if "root" in given and "held_out" not in given and not is_own:
            given["held_out"] = 0.0 if split == "train" else 1.0
        changed = replace(data, **given)
        changed.check()
        return changed


@dataclass(frozen=True)
class Eval:
    """Measure a classifier."""

    checkpoint: Checkpoint
    """A run folder, a file of weights, or the name of a pretrained timm model."""
    model: str | None = None
    """The architecture, if the file does not say."""
    split: Literal["validation", "train"] = "validation"
    """Which pictures."""
    data: DataChoice = field(default_factory=DataChoice)
    batch: int = 64
    """Pictures at once."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast type."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to run."""
    confusion: Path | None = None
    """Picture of the confusion matrix to draw, of up to 1300 classes."""
    out: Path | None = None
    """JSON file for the numbers."""

    def check(self) -> None:
        check_at_least("batch", self.batch, 1)
        check_output_file("--confusion", self.confusion)
        if self.confusion is not None and (suffix := self.confusion.suffix.lower()) not in _DRAWN:
            raise ValueError(f"--confusion draws {', '.join(_DRAWN)}, not {suffix or 'a file without a suffix'}")
        check_output_file("--out", self.out)


def run(options: Eval) -> None:
    options.check()
    with together(options.device) as world:
        classifier = load_classifier(options.checkpoint, options.model)
        if options.confusion is not None and (count := len(classifier.classes)) > CONFUSION_CLASSES:
            raise ValueError(f"--confusion draws up to {CONFUSION_CLASSES} classes, the model has {count}; leave it out")
        data = options.data.over(classifier.data, options.split)
        source = open_source(data, options.split)
        align_classes(source, classifier.classes)
        result = evaluate_on(classifier, source, data, world, options.batch, options.precision)
        if world.is_first:
            _say(options, classifier, data, result)
            if isinstance(source, Folder) and source.share is not None:
                print(f"{data.root} has no split of its own: {_part(options.split, source.share, classifier.data.held_out)}")


def _part(split: str, share: float, held_out: float) -> str:
    """Which part of a folder was measured, where `share` of it is held out now and `held_out` was in training."""
    if share in (0, 1):
        return "all of it was measured (--data.held-out)"
    measured = f"about {share if split == 'validation' else 1 - share:.0%} of it were measured"
    if share != held_out:
        return f"{measured}; training held out {held_out:.0%}, so some of these may be among those it learned from"
    return f"{measured}, {'held out of training' if split == 'validation' else 'those of training'} (--data.held-out)"


def align_classes(source: Source, known: tuple[str, ...]) -> None:
    """Make the source's labels mean the classifier's classes: by name, or by place where it has as many and shares no name."""
    if source.classes == known:
        return
    check_labels(source, len(source.classes), "evaluation")
    names, place = tell_apart(source.classes), {name: index for index, name in enumerate(tell_apart(known))}
    present = set(np.unique(source.labels).tolist())  # a class without pictures is nobody's business
    strange = [name for index, name in enumerate(names) if name not in place and index in present]
    if not strange:
        source.labels = np.array([place.get(name, -1) for name in names])[source.labels]
        source.classes = known
    elif len(names) != len(known):
        raise ValueError(
            f"the model does not know the data's class {strange[0]!r}; it knows {len(known)} "
            f"({', '.join(known[:3])}{', ...' if len(known) > 3 else ''})"
        )
    elif len(strange) < len(names):
        raise ValueError(
            f"the model does not know the data's class {strange[0]!r}, though it knows {len(names) - len(strange)} of "
            f"{len(names)} by name; name them as the model does ({', '.join(known[:3])}, ...)"
        )
    else:
        print("the data names its classes otherwise than the model: they are taken in order", file=sys.stderr)


def evaluate_on(
    classifier: Classifier,
    source: Source,
    data: DataConfig,
    world: World,
    batch: int = 64,
    precision: str = "fp32",
    subset: torch.Tensor | None = None,
    transform: Any = None,
    title: str = "evaluating",
    damage: Damage | None = None,
) -> Accuracy:
    """The accuracy of a classifier on a source.

    Args:
        subset: The classifier's outputs that stand for the source's classes, where it has more.
        transform: Instead of the classifier's own preparation of a picture.
        damage: What is known to be broken and is not named again, where a source is evaluated more than once.
    """
    count = len(subset) if subset is not None else len(classifier.classes)
    check_labels(source, count, "evaluation")
    pictures = Pictures(source, [transform or classifier.transform(data)], classifier.mode)
    loader = make_loader(pictures, EvalOrder(len(source.labels), batch, world), collate, data.workers, world.device)
    model = classifier.model.to(world.device)
    console = Console()
    silent = not world.is_first or not console.is_terminal
    with Progress(console=console, disable=silent, transient=True) as progress, autocast(world.device, precision):
        bar = progress.add_task(title, total=len(source.labels) / world.size)
        note = (Damage(data.on_broken) if damage is None else damage).note
        return evaluate_classifier(model, loader, count, world.device, subset, partial(progress.advance, bar), note)


def _say(options: Eval, classifier: Classifier, data: DataConfig, result: Accuracy) -> None:
    console = Console()
    table = Table("model", "pictures", "px", "top-1", "top-5", "loss")
    figures = [f"{result.top1:.2f}", f"{result.top5:.2f}", f"{result.loss:.4f}"]
    if classifier.paper_top1 is not None:
        table.add_column("the paper's top-1, ImageNet-1K")
        figures.append(f"{classifier.paper_top1:.1f}")
    table.add_row(classifier.name, str(result.count), str(data.size_px), *figures)
    console.print(table)
    if result.broken:
        print(f"{counted(len(result.broken), 'broken picture')} left out, the first: {result.broken[0]}")
    if options.out is not None:
        numbers = dict(model=classifier.name, count=result.count, size_px=data.size_px, broken=len(result.broken))
        numbers |= dict(top1=result.top1, top5=result.top5, loss=result.loss)
        write_json(options.out, numbers)
    if options.confusion is not None:
        options.confusion.parent.mkdir(parents=True, exist_ok=True)
        draw_confusion(result.confusion, classifier.classes, options.confusion)
