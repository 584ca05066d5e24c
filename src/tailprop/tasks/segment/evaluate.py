"""`tailprop eval` for a segmenter: mean IoU on its own data or on any with label PNGs."""

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailprop.data.broken import Damage
from tailprop.data.formats.label_maps import LabelSet, has_classes
from tailprop.engine.options import Checkpoint
from tailprop.runtime.distributed import together
from tailprop.runtime.precision import autocast
from tailprop.tasks.segment.data import SegmentDataConfig, open_labelled
from tailprop.tasks.segment.inference import InferenceConfig
from tailprop.tasks.segment.load import LoadedSegmenter, load_segmenter
from tailprop.tasks.segment.metrics import LabelScores
from tailprop.tasks.segment.task import eval_loader, evaluate_segmenter, papers_miou
from tailprop.utils.files import write_json
from tailprop.utils.validation import check_output_file

__all__ = ["EvalSegment", "InferenceChoice", "run"]


@dataclass(frozen=True)
class SegmentDataChoice:
    """Other data than the checkpoint was trained on; what is not given stays as in its run."""

    root: Path | None = None
    """Folder that everything below is in."""
    val_images: str | None = None
    """Folder of the pictures."""
    val_labels: str | None = None
    """Their label maps, PNGs of the same names."""
    classes: str | None = None
    """File with a class name in every line; ade20k = its 150."""
    first_label: int | None = None
    """Number of the first class in the label maps; lower numbers are ignored. None = as in the run, or as another list of
    classes has it."""
    short_px: int | None = None
    """Shorter side the pictures are resized to."""
    long_px: int | None = None
    """Longer side at most."""
    on_broken: Literal["skip", "stop"] | None = None
    """A picture or a label map that is missing or damaged: skip and count it, or stop."""
    workers: int | None = None
    """Loader processes."""

    def over(self, data: SegmentDataConfig) -> SegmentDataConfig:
        changed = over(self, data)
        other_list = self.classes is not None
        if self.root is not None:
            changed = replace(changed, source="folder", limit=None)
            if self.classes is None and has_classes(self.root):  # the data's own list comes before the run's
                changed, other_list = replace(changed, classes=None), True
        if other_list and self.first_label is None:
            changed = replace(changed, first_label=None)
        changed.check()
        return changed


@dataclass(frozen=True)
class InferenceChoice:
    """Another way to look at the pictures; what is not given stays as in the run."""

    mode: Literal["slide", "whole"] | None = None
    """slide: in windows, averaged where they overlap; whole: at once."""
    window_px: int | None = None
    """Side of the windows."""
    stride_px: int | None = None
    """From one window to the next."""
    scales: tuple[float, ...] | None = None
    """Sizes over the usual one; probabilities are averaged over them."""
    flip: bool | None = None
    """Look at the mirror image too."""

    def over(self, inference: InferenceConfig) -> InferenceConfig:
        changed = over(self, inference)
        changed.check()
        return changed


def over(choice: Any, settings: Any) -> Any:
    """Settings with what was chosen in their place."""
    return replace(settings, **{f.name: v for f in fields(choice) if (v := getattr(choice, f.name)) is not None})


@dataclass(frozen=True)
class EvalSegment:
    """Measure a segmenter."""

    checkpoint: Checkpoint
    """A run folder, or a file of exported weights."""
    split: Literal["validation", "train"] = "validation"
    """Which pictures."""
    data: SegmentDataChoice = field(default_factory=SegmentDataChoice)
    inference: InferenceChoice = field(default_factory=InferenceChoice)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast type."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to run."""
    threads: int = 0
    """CPU threads; 0 = PyTorch's choice."""
    out: Path | None = None
    """JSON file for the numbers, those of every class among them."""

    def check(self) -> None:
        check_output_file("--out", self.out)
        if self.split == "train" and (self.data.val_images or self.data.val_labels):
            raise ValueError("--data.val-images and --data.val-labels are of the validation split; leave out --split train")


def run(options: EvalSegment) -> None:
    options.check()
    with together(options.device, options.threads) as world:
        segmenter = load_segmenter(options.checkpoint)
        config = segmenter.config
        config = replace(config, data=options.data.over(config.data), inference=options.inference.over(config.inference))
        segmenter = replace(segmenter, config=config, model=segmenter.model.to(world.device))
        part = open_labelled(replace(config.data, source="folder"), options.split)  # it makes no scenes
        if options.split == "train":
            part.pairs = part.pairs[: config.data.limit]  # what it was trained on
        order = align_classes(part, segmenter.classes)
        loader = eval_loader(part, config.data.workers, world, order)
        damage = Damage(config.data.on_broken, world.is_first)
        damage.note(part.broken, shared=True)
        with autocast(world.device, options.precision):
            scores, broken = evaluate_segmenter(
                segmenter.label, loader, len(segmenter.classes), world.device, damage.note, classes=order
            )
        if world.is_first:
            _say(options, segmenter, len(part.pairs) - len(broken), scores)


def align_classes(part: LabelSet, known: tuple[str, ...]) -> list[int]:
    """The segmenter's number for each class of the data, matched by name; a name it does not know is refused.

    ADE20K's own table has synonyms behind each name ("building, edifice"), our list the names alone.
    """
    first_names = [name.split(",")[0] for name in known]
    numbers = {name: i for i, name in enumerate(first_names) if first_names.count(name) == 1}
    numbers |= {name: i for i, name in enumerate(known)}
    found = [numbers.get(name, numbers.get(name.split(",")[0])) for name in part.classes]
    strange = [name for name, number in zip(part.classes, found, strict=True) if number is None]
    if strange:
        raise ValueError(f"{part.name} has classes that the segmenter does not know: {', '.join(strange[:5])}")
    for k, number in enumerate(found):
        if (other := found.index(number)) < k:
            both = f"{part.classes[other]!r} and {part.classes[k]!r}"
            raise ValueError(f"{part.name} has {both}, which are one class of the segmenter: {known[number or 0]!r}")
    return [number for number in found if number is not None]


def _views(inference: InferenceConfig) -> str:
    """How the pictures were looked at, in words."""
    how = "whole" if inference.mode == "whole" else f"windows of {inference.window_px} px every {inference.stride_px}"
    scales = "" if inference.scales == (1.0,) else f", scales {', '.join(f'{scale:g}' for scale in inference.scales)}"
    return how + scales + (", mirrored too" if inference.flip else "")


def _say(options: EvalSegment, segmenter: LoadedSegmenter, count: int, scores: LabelScores) -> None:
    console = Console()
    table = Table("class", "IoU, %", "pixels found, %")
    for name, iou, accuracy in zip(segmenter.classes, scores.iou, scores.accuracy, strict=True):
        table.add_row(Text(name), *("-" if value is None else f"{value:.1f}" for value in (iou, accuracy)))
    console.print(table)
    config = segmenter.config
    beside = papers_miou(config, segmenter.classes, count) if options.split == "validation" else ""
    console.print(
        f"mean IoU {scores.miou:.2f} %{beside}, pixels right {scores.pixel_accuracy:.2f} %, mean over classes "
        f"{scores.class_accuracy:.2f} %; {config.model.name}, {count} pictures, shorter side {config.data.short_px} px, "
        f"{_views(config.inference)}"
    )
    if options.out is not None:
        classes = dict(zip(segmenter.classes, scores.iou, strict=True))
        about = dict(model=config.model.name, checkpoint=options.checkpoint, split=options.split, count=count)
        how = dict(short_px=config.data.short_px, long_px=config.data.long_px, precision=options.precision)
        by_class = dict(iou=classes, accuracy=dict(zip(segmenter.classes, scores.accuracy, strict=True)))
        numbers = about | how | dict(inference=asdict(config.inference)) | scores.numbers() | by_class
        write_json(options.out, numbers)
