"""`tailprop eval` for a segmenter: mean IoU on the data of its run or on any dataset with label maps."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tailprop.data.broken import BrokenFiles
from tailprop.data.formats.label_maps import has_classes
from tailprop.runtime.distributed import process_group
from tailprop.runtime.precision import autocast
from tailprop.tasks.common.classes import align_classes
from tailprop.tasks.common.options import EvalOptions, override
from tailprop.tasks.common.overlap import count_training_images, describe_overlap
from tailprop.tasks.segment.data import SegmentDataConfig, open_labelled
from tailprop.tasks.segment.inference import InferenceConfig
from tailprop.tasks.segment.load import ImageSegmenter, load_segmenter
from tailprop.tasks.segment.metrics import LabelScores
from tailprop.tasks.segment.task import eval_loader, evaluate_segmenter, papers_miou
from tailprop.utils.files import write_json
from tailprop.utils.terminal import Console, Table

__all__ = ["InferenceChoice", "SegmentEval", "run"]


@dataclass(frozen=True)
class SegmentDataChoice:
    """A dataset to evaluate on instead of the run's; settings that are not given stay as in the run."""

    root: Path | None = None
    """Root folder of the dataset."""
    val_images: str | None = None
    """Folder of the images."""
    val_labels: str | None = None
    """Label maps of these images, PNGs of the same names."""
    classes: str | None = None
    """File with one class name per line; ade20k = its 150 classes."""
    colors: str | None = None
    """File with a class and its colour in each line, for label maps in colours; none = as in the run, or as in the new class
    list."""
    first_label: int | None = None
    """Value of the first class in the label maps; lower values are ignored. None = as in the run, or as in the new class
    list."""
    short_px: int | None = None
    """Shorter side the images are resized to."""
    long_px: int | None = None
    """Maximum longer side."""
    on_broken: Literal["skip", "stop"] | None = None
    """For a missing or corrupt image or label map: skip and count it, or stop."""
    workers: int | None = None
    """Loader processes."""

    def over(self, data: SegmentDataConfig) -> SegmentDataConfig:
        given: dict[str, Any] = {}
        other_list = self.classes is not None
        if self.root is not None:
            given = dict(source="folder", limit=None)
            if self.classes is None and has_classes(self.root):  # the dataset's class list takes precedence over the run's
                given["classes"], other_list = None, True
        if other_list and self.first_label is None:
            given["first_label"] = None
        if other_list and self.colors is None:
            given["colors"] = None
        if self.colors is not None:
            given |= dict(classes=self.classes, first_label=None)
        return override(data, self, **given)


@dataclass(frozen=True)
class InferenceChoice:
    """Inference settings that override the run's; settings that are not given stay as in the run."""

    mode: Literal["slide", "whole"] | None = None
    """slide: windows, averaged where they overlap; whole: the whole image at once."""
    window_px: int | None = None
    """Side of the windows."""
    stride_px: int | None = None
    """Distance between windows."""
    scales: tuple[float, ...] | None = None
    """Factors on the image size; probabilities are averaged over them."""
    flip: bool | None = None
    """Also average over the horizontally flipped image."""

    def over(self, inference: InferenceConfig) -> InferenceConfig:
        return override(inference, self)


@dataclass(frozen=True)
class SegmentEval(EvalOptions):
    """Evaluate a segmenter."""

    split: Literal["validation", "train"] = "validation"
    """Split to evaluate."""
    data: SegmentDataChoice = field(default_factory=SegmentDataChoice)
    inference: InferenceChoice = field(default_factory=InferenceChoice)

    def check(self) -> None:
        super().check()
        if self.split == "train" and (self.data.val_images or self.data.val_labels):
            raise ValueError("--data.val-images and --data.val-labels belong to the validation split; leave out --split train")


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
