"""`tailprop eval` for a classifier: top-1, top-5, precision and recall on any dataset."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tailprop.data.broken import BrokenFiles
from tailprop.data.loader import create_loader
from tailprop.data.samplers import EvalSampler
from tailprop.runtime.distributed import World, process_group
from tailprop.runtime.precision import autocast
from tailprop.tasks.classify.config import DataConfig
from tailprop.tasks.classify.data import ImageDataset, collate, open_source
from tailprop.tasks.classify.figures import CONFUSION_CLASSES, draw_confusion, draw_mistakes
from tailprop.tasks.classify.load import ImageClassifier, load_classifier
from tailprop.tasks.classify.metrics import Accuracy, evaluate_classifier
from tailprop.tasks.classify.options import ClassifyEval
from tailprop.tasks.classify.sources import Folder, Source, check_labels
from tailprop.tasks.common.classes import align_classes
from tailprop.tasks.common.figures import dataset_name
from tailprop.tasks.common.overlap import count_training_contents, describe_overlap
from tailprop.tasks.common.progress import progress_bar
from tailprop.utils.files import make_folder, write_json
from tailprop.utils.terminal import Console, Table
from tailprop.utils.text import counted, say

__all__ = ["align_source", "evaluate_on", "run"]

_CLASSES_PRINTED = 40
_MISTAKES_DRAWN = 24


def run(options: ClassifyEval) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        classifier = load_classifier(options.checkpoint, options.model)
        if options.confusion is not None and (count := len(classifier.names)) > CONFUSION_CLASSES:
            raise ValueError(f"--confusion supports up to {CONFUSION_CLASSES} classes, but the model has {count}; omit it")
        data = options.data.over(classifier.settings.data, options.split)
        data.warn_of_small_crop()
        source = open_source(data, options.split)
        align_source(source, classifier.names)
        result = evaluate_on(classifier, source, data, world, options.batch_size, options.precision)
        if world.is_main:
            overlap = _count_training_images(classifier, source)
            _print(classifier, data, result, overlap)
            if isinstance(source, Folder) and source.share is not None:
                part = _describe_part(options.split, source.share, classifier.settings.data.held_out)
                say(f"{data.root} has no splits: {part}")
            _write(options, classifier, data, source, result, overlap)


def _describe_part(split: str, share: float, held_out: float) -> str:
    """Describe the evaluated part of a folder: `share` of it is held out now, and `held_out` was in training."""
    if share in (0, 1):
        return "all of its images were evaluated (--data.held-out)"
    evaluated = f"about {share if split == 'validation' else 1 - share:.0%} of its images were evaluated"
    if share != held_out:
        return f"{evaluated}; training held out {held_out:.0%}, so some of them may be training images"
    return f"{evaluated}, {'those held out of training' if split == 'validation' else 'those of training'} (--data.held-out)"


def align_source(source: Source, known: tuple[str, ...]) -> None:
    """Convert the source's labels to the classifier's classes, by name, or in order if no name is shared."""
    if source.classes == known:
        return
    check_labels(source, len(source.classes), "evaluation")
    present = set(np.unique(source.labels).tolist())  # classes without images need no match
    index = align_classes(source.classes, known, "the dataset", present, by_place=True)
    source.labels = np.array([-1 if place is None else place for place in index])[source.labels]
    source.classes = known


def _count_training_images(classifier: ImageClassifier, source: Source) -> int | None:
    data = classifier.settings.data
    if data.source in ("folder", "parquet") and data.root is None:
        return None  # weights without their run
    return count_training_contents(lambda: open_source(data, "train").contents(), source.contents)


def evaluate_on(
    classifier: ImageClassifier,
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
        subset: The classifier's outputs for the source's classes, if it has more outputs.
        transform: Replaces the classifier's preprocessing.
        broken: Known broken files, which are not printed again when a source is evaluated several times.
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


def _print(classifier: ImageClassifier, data: DataConfig, result: Accuracy, overlap: int | None) -> None:
    console = Console()
    table = Table("model", "images", "px", "top-1, %", "top-5, %", "loss")
    figures = [f"{result.top1:.2f}", f"{result.top5:.2f}", f"{result.loss:.4f}"]
    if classifier.paper_top1 is not None:
        table.add_column("paper's top-1, ImageNet-1K")
        figures.append(f"{classifier.paper_top1:.1f}")
    table.add_row(classifier.name, str(result.count), str(data.size_px), *figures)
    console.print(table)
    if len(classifier.names) <= _CLASSES_PRINTED:
        classes = Table("class", "images", "precision, %", "recall, %")
        for name, row in zip(classifier.names, result.by_class, strict=True):
            shown = ("-" if value is None else f"{value:.1f}" for value in (row.precision, row.recall))
            classes.add_row(name, str(row.count), *shown)
        console.print(classes)
    if result.broken:
        say(f"{counted(len(result.broken), 'broken image')} skipped, the first: {result.broken[0]}")
    if (message := describe_overlap(overlap, result.count)) is not None:
        say(message)


def _write(
    options: ClassifyEval, classifier: ImageClassifier, data: DataConfig, source: Source, result: Accuracy, overlap: int | None
) -> None:
    if options.out is not None:
        numbers = dict(model=classifier.name, count=result.count, size_px=data.size_px, broken=len(result.broken))
        numbers |= dict(top1=result.top1, top5=result.top5, loss=result.loss, training_images=overlap)
        by_class = {name: asdict(row) for name, row in zip(classifier.names, result.by_class, strict=True)}
        write_json(options.out, numbers | dict(classes=by_class))
    measured_on = ", training images" if overlap == result.count else ""
    title = f"{Path(options.checkpoint).name}, {classifier.name}, {dataset_name(data)} at {data.size_px} px{measured_on}"
    if options.confusion is not None:
        make_folder(options.confusion.parent)
        draw_confusion(result.confusion, classifier.names, options.confusion, title)
    if options.images is not None:
        drawn = draw_mistakes(result, source, classifier.names, options.images / "mistakes.jpg", _MISTAKES_DRAWN, title)
        say(f"{options.images / 'mistakes.jpg'}: {counted(drawn, 'mistake')}" if drawn else "no mistakes to draw")
