"""`tailprop eval` for a classifier: top-1, top-5, precision and recall of a checkpoint on any data."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailprop.data.broken import BrokenFiles
from tailprop.data.loader import create_loader
from tailprop.data.samplers import EvalSampler
from tailprop.data.splits import count_shared
from tailprop.engine.settings import setting
from tailprop.runtime.distributed import World, process_group
from tailprop.runtime.precision import autocast
from tailprop.tasks.classify.data import DataConfig, ImageDataset, collate, open_source
from tailprop.tasks.classify.figures import CONFUSION_CLASSES, draw_confusion, draw_mistakes
from tailprop.tasks.classify.load import Classifier, load_classifier
from tailprop.tasks.classify.metrics import Accuracy, evaluate_classifier
from tailprop.tasks.classify.sources import Folder, Source, check_labels
from tailprop.tasks.common.classes import align_classes
from tailprop.tasks.common.options import EvalOptions, override
from tailprop.tasks.common.predictor import progress_bar
from tailprop.utils.files import write_json
from tailprop.utils.text import counted, printable
from tailprop.utils.validation import check_at_least, check_output_file, check_output_folder

__all__ = ["ClassifyEval", "DataChoice", "align_source", "evaluate_on", "run"]

_DRAWN = (".png", ".jpg", ".pdf", ".svg")
_CLASSES_PRINTED = 40
_MISTAKES_DRAWN = 24


@dataclass(frozen=True)
class DataChoice:
    """Other data than the checkpoint was trained on; what is not given stays as in its run."""

    source: Literal["folder", "parquet", "timm", "digits"] | None = None
    """folder: one folder for each class; parquet: a Hugging Face snapshot; timm: a dataset by name; digits: embedded."""
    root: Path | None = None
    """Where the images are."""
    name: str | None = None
    """timm's name of the dataset, for source timm."""
    size_px: int | None = None
    """Side of the images."""
    resize_px: int | None = None
    """Shorter side before the central crop; none = in the run's proportion to size_px."""
    on_broken: Literal["skip", "stop"] | None = None
    """An image that cannot be read: skip and count it, or stop."""
    held_out: float | None = None
    """Share measured of a folder without a split; none = all of it, or in the run's own folder what it held out."""
    unpack: bool | None = None
    """Unpack parquet shards into a cache once instead of reading them in place."""
    cache_dir: Path | None = setting(None, aliases=("cache",))
    """Where parquet shards are unpacked, if they are; none = the cache of the datasets library."""
    download: bool | None = None
    """Let timm download the dataset."""
    workers: int | None = None
    """Loader processes."""

    def over(self, data: DataConfig, split: str = "validation") -> DataConfig:
        given: dict[str, Any] = {}
        if self.root is not None and self.source is None and data.source not in ("folder", "parquet"):
            given["source"] = "folder"
        is_own = data.root is not None and self.root is not None and self.root.resolve() == data.root.resolve()
        if self.root is not None and self.held_out is None and not is_own:
            given["held_out"] = 0.0 if split == "train" else 1.0
        return override(data.at_size(self.size_px), self, **given)


@dataclass(frozen=True)
class ClassifyEval(EvalOptions):
    """Measure a classifier."""

    model: str | None = None
    """The architecture, if the file does not say."""
    split: Literal["validation", "train"] = "validation"
    """Which images."""
    data: DataChoice = field(default_factory=DataChoice)
    batch_size: int = setting(64, aliases=("batch",))
    """Images at once."""
    confusion: Path | None = None
    """Image of the confusion matrix to draw, of up to 1300 classes."""
    images: Path | None = None
    """Folder for mistakes.jpg, the wrong answers the model was most confident of."""

    def check(self) -> None:
        super().check()
        check_at_least("batch_size", self.batch_size, 1)
        check_output_file("--confusion", self.confusion)
        if self.confusion is not None and (suffix := self.confusion.suffix.lower()) not in _DRAWN:
            raise ValueError(f"--confusion draws {', '.join(_DRAWN)}, not {suffix or 'a file without a suffix'}")
        if self.images is not None:
            check_output_folder("--images", self.images)


def run(options: ClassifyEval) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        classifier = load_classifier(options.checkpoint, options.model)
        if options.confusion is not None and (count := len(classifier.names)) > CONFUSION_CLASSES:
            raise ValueError(f"--confusion draws up to {CONFUSION_CLASSES} classes, the model has {count}; leave it out")
        data = options.data.over(classifier.settings.data, options.split)
        data.warn_of_small_crop()
        source = open_source(data, options.split)
        align_source(source, classifier.names)
        result = evaluate_on(classifier, source, data, world, options.batch_size, options.precision)
        if world.is_main:
            learned = count_training_images(classifier, source) if options.split == "validation" else None
            _print(classifier, data, result, learned)
            if isinstance(source, Folder) and source.share is not None:
                part = _part(options.split, source.share, classifier.settings.data.held_out)
                print(f"{data.root} has no split of its own: {part}")
            _write(options, classifier, data, source, result, learned)


def _part(split: str, share: float, held_out: float) -> str:
    """Which part of a folder was measured, where `share` of it is held out now and `held_out` was in training."""
    if share in (0, 1):
        return "all of it was measured (--data.held-out)"
    measured = f"about {share if split == 'validation' else 1 - share:.0%} of it were measured"
    if share != held_out:
        return f"{measured}; training held out {held_out:.0%}, so some of these may be among those it learned from"
    return f"{measured}, {'held out of training' if split == 'validation' else 'those of training'} (--data.held-out)"


def align_source(source: Source, known: tuple[str, ...]) -> None:
    """Make the source's labels mean the classifier's classes: by name, or by place where it has as many and shares no name."""
    if source.classes == known:
        return
    check_labels(source, len(source.classes), "evaluation")
    present = set(np.unique(source.labels).tolist())  # a class without images is nobody's business
    index = align_classes(source.classes, known, "the data", present, by_place=True)
    source.labels = np.array([-1 if place is None else place for place in index])[source.labels]
    source.classes = known


def count_training_images(classifier: Classifier, source: Source) -> int | None:
    """How many measured images are among those the run was trained on, if those can still be read."""
    data = classifier.settings.data
    if data.source in ("folder", "parquet") and data.root is None:
        return None  # weights without their run
    try:
        known, measured = open_source(data, "train").contents(), source.contents()
        return None if known is None or measured is None else count_shared(known, measured)
    except (ValueError, OSError):  # the training data is not where it was
        return None


def evaluate_on(
    classifier: Classifier,
    source: Source,
    data: DataConfig,
    world: World,
    batch_size: int = 64,
    precision: str = "fp32",
    subset: torch.Tensor | None = None,
    transform: Any = None,
    title: str = "evaluating",
    broken: BrokenFiles | None = None,
) -> Accuracy:
    """The accuracy of a classifier on a source.

    Args:
        subset: The classifier's outputs that stand for the source's classes, where it has more.
        transform: Instead of the classifier's own preprocessing of an image.
        broken: What is known to be broken and is not named again, where a source is evaluated more than once.
    """
    count = len(subset) if subset is not None else len(classifier.names)
    check_labels(source, count, "evaluation")
    images = ImageDataset(source, [transform or classifier.transform(data)], classifier.mode)
    sampler = EvalSampler(len(source.labels), batch_size, world)
    loader = create_loader(images, sampler, collate, data.workers, world.device)
    model = classifier.model.to(world.device)
    record = (BrokenFiles(data.on_broken) if broken is None else broken).record
    with (
        progress_bar(title, len(source.labels) / world.size, Console(), world.is_main) as advance,
        autocast(world.device, precision),
    ):
        return evaluate_classifier(model, loader, count, world.device, subset, advance, record)


def _print(classifier: Classifier, data: DataConfig, result: Accuracy, learned: int | None) -> None:
    console = Console()
    table = Table("model", "images", "px", "top-1, %", "top-5, %", "loss")
    figures = [f"{result.top1:.2f}", f"{result.top5:.2f}", f"{result.loss:.4f}"]
    if classifier.paper_top1 is not None:
        table.add_column("the paper's top-1, ImageNet-1K")
        figures.append(f"{classifier.paper_top1:.1f}")
    table.add_row(classifier.name, str(result.count), str(data.size_px), *figures)
    console.print(table)
    if len(classifier.names) <= _CLASSES_PRINTED:
        classes = Table("class", "images", "precision, %", "recall, %")
        for name, row in zip(classifier.names, result.by_class, strict=True):
            shown = ("-" if value is None else f"{value:.1f}" for value in (row.precision, row.recall))
            classes.add_row(Text(printable(name)), str(row.count), *shown)
        console.print(classes)
    if result.broken:
        print(f"{counted(len(result.broken), 'broken image')} left out, the first: {result.broken[0]}")
    if learned:
        print(f"{learned} of the {counted(result.count, 'image')} are training images of this run (same bytes)")


def _write(
    options: ClassifyEval, classifier: Classifier, data: DataConfig, source: Source, result: Accuracy, learned: int | None
) -> None:
    if options.out is not None:
        numbers = dict(model=classifier.name, count=result.count, size_px=data.size_px, broken=len(result.broken))
        numbers |= dict(top1=result.top1, top5=result.top5, loss=result.loss, training_images=learned)
        by_class = {name: asdict(row) for name, row in zip(classifier.names, result.by_class, strict=True)}
        write_json(options.out, numbers | dict(classes=by_class))
    if options.confusion is not None:
        options.confusion.parent.mkdir(parents=True, exist_ok=True)
        draw_confusion(result.confusion, classifier.names, options.confusion)
    if options.images is not None:
        drawn = draw_mistakes(result, source, classifier.names, options.images / "mistakes.jpg", _MISTAKES_DRAWN)
        print(f"{options.images / 'mistakes.jpg'}: {counted(drawn, 'mistake')}" if drawn else "no mistake to draw")
