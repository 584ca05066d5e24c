"""`tailprop eval` for a segmenter: mean IoU on the data of its run or on any dataset with label maps."""

from dataclasses import asdict, replace
from pathlib import Path

from tailprop.data.broken import BrokenFiles
from tailprop.runtime.distributed import process_group
from tailprop.runtime.precision import autocast
from tailprop.tasks.common.classes import align_classes
from tailprop.tasks.common.overlap import count_training_images, describe_overlap
from tailprop.tasks.segment.config import InferenceConfig, SegmentDataConfig
from tailprop.tasks.segment.data import open_labelled
from tailprop.tasks.segment.load import ImageSegmenter, load_segmenter
from tailprop.tasks.segment.metrics import LabelScores
from tailprop.tasks.segment.options import SegmentEval
from tailprop.tasks.segment.task import eval_loader, evaluate_segmenter, papers_miou
from tailprop.utils.files import write_json
from tailprop.utils.terminal import Console, Table

__all__ = ["run"]


def run(options: SegmentEval) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        segmenter = load_segmenter(options.checkpoint)
        own = segmenter.settings
        config = replace(own, data=options.data.over(own.data), inference=options.inference.over(own.inference))
        segmenter = replace(segmenter, settings=config, model=segmenter.model.to(world.device))
        part = open_labelled(replace(config.data, source="folder"), options.split)  # evaluation does not generate scenes
        if options.split == "train":
            part.pairs = part.pairs[: config.data.limit]  # the images it was trained on
        indices = [index for index in align_classes(part.classes, segmenter.names, part.name) if index is not None]
        loader = eval_loader(part, config.data.workers, world, indices)
        broken_files = BrokenFiles(config.data.on_broken, world.is_main)
        broken_files.record(part.broken, shared=True)
        with autocast(world.device, options.precision):
            scores, broken = evaluate_segmenter(
                segmenter.label, loader, len(segmenter.names), world.device, broken_files.record, classes=indices
            )
        if world.is_main:
            images = [pair.image for pair in part.pairs]
            overlap = count_training_images(lambda: _training_paths(own.data), images)
            _print(options, segmenter, len(part.pairs) - len(broken), scores, overlap)


def _training_paths(data: SegmentDataConfig) -> list[Path]:
    if data.root is None:
        raise ValueError("weights without their run do not know their training data")
    pairs = open_labelled(replace(data, source="folder"), "train").pairs[: data.limit]
    return [pair.image for pair in pairs]


def _describe(inference: InferenceConfig) -> str:
    """The inference settings as text."""
    how = "whole" if inference.mode == "whole" else f"windows of {inference.window_px} px every {inference.stride_px}"
    scales = "" if inference.scales == (1.0,) else f", scales {', '.join(f'{scale:g}' for scale in inference.scales)}"
    return how + scales + (", with flips" if inference.flip else "")


def _print(options: SegmentEval, segmenter: ImageSegmenter, count: int, scores: LabelScores, overlap: int | None) -> None:
    console = Console()
    table = Table("class", "IoU, %", "accuracy, %")
    for name, iou, accuracy in zip(segmenter.names, scores.iou, scores.accuracy, strict=True):
        table.add_row(name, *("-" if value is None else f"{value:.1f}" for value in (iou, accuracy)))
    console.print(table)
    config = segmenter.settings
    paper = papers_miou(config, segmenter.names, count) if options.split == "validation" else ""
    console.print(
        f"mean IoU {scores.miou:.2f} %{paper}, pixel accuracy {scores.pixel_accuracy:.2f} %, mean class accuracy "
        f"{scores.class_accuracy:.2f} %; {config.model.name}, {count} images, shorter side {config.data.short_px} px, "
        f"{_describe(config.inference)}"
    )
    if (message := describe_overlap(overlap, count)) is not None:
        console.print(message)
    if options.out is not None:
        classes = dict(zip(segmenter.names, scores.iou, strict=True))
        about = dict(model=config.model.name, checkpoint=options.checkpoint, split=options.split, count=count)
        how = dict(short_px=config.data.short_px, long_px=config.data.long_px, precision=options.precision)
        by_class = dict(iou=classes, accuracy=dict(zip(segmenter.names, scores.accuracy, strict=True)))
        numbers = about | how | dict(inference=asdict(config.inference)) | scores.numbers() | by_class
        numbers |= dict(training_images=overlap)
        write_json(options.out, numbers)
