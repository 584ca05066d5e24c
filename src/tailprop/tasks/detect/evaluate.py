"""`tailprop eval` for a detector: box and mask AP on its own data or on any in COCO's format."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from tailprop.data.broken import Damage
from tailprop.data.formats.coco import CocoSet
from tailprop.engine.options import Checkpoint
from tailprop.runtime.distributed import together
from tailprop.runtime.precision import autocast
from tailprop.tasks.detect.data import DetectDataConfig, open_coco
from tailprop.tasks.detect.load import LoadedDetector, load_detector
from tailprop.tasks.detect.metrics import KINDS, NAMES, RECALLS
from tailprop.tasks.detect.task import detect_all, eval_loader, learned_from, papers_ap, score_over_processes
from tailprop.utils.files import write_json
from tailprop.utils.text import counted
from tailprop.utils.validation import check_output_file

__all__ = ["EvalDetect", "run"]


@dataclass(frozen=True)
class DetectDataChoice:
    """Other data than the checkpoint was trained on; what is not given stays as in its run."""

    root: Path | None = None
    """Folder that everything below is in."""
    val_images: str | None = None
    """Folder of the pictures."""
    val_json: str | None = None
    """Their annotations."""
    on_broken: Literal["skip", "stop"] | None = None
    """A picture or an annotation that is damaged: skip and count it, or stop."""
    workers: int | None = None
    """Loader processes."""

    def over(self, data: DetectDataConfig) -> DetectDataConfig:
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if "root" in given:
            given["source"] = "coco"
        return replace(data, **given)


@dataclass(frozen=True)
class EvalDetect:
    """Measure a detector."""

    checkpoint: Checkpoint
    """A run folder, or a file of exported weights."""
    split: Literal["validation", "train"] = "validation"
    """Which pictures."""
    data: DetectDataChoice = field(default_factory=DetectDataChoice)
    short_px: int | None = None
    """Shorter side of the pictures; none = as in the run."""
    long_px: int | None = None
    """Longer side at most; none = in the run's proportion to short_px."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast type."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to run."""
    threads: int = 0
    """CPU threads; 0 = PyTorch's choice."""
    results: Path | None = None
    """File for what is found, in COCO's results format."""
    out: Path | None = None
    """JSON file for the numbers."""

    def check(self) -> None:
        check_output_file("--results", self.results)
        check_output_file("--out", self.out)
        if self.split == "train" and (self.data.val_images or self.data.val_json):
            raise ValueError("--data.val-images and --data.val-json are of the validation split; leave out --split train")


def run(options: EvalDetect) -> None:
    options.check()
    with together(options.device, options.threads) as world:
        detector = load_detector(options.checkpoint, options.short_px, options.long_px)
        data = options.data.over(detector.config.data)
        data.check()
        part = open_coco(replace(data, source="coco"), options.split)  # it makes no scenes
        if options.split == "train":
            part.images = learned_from(part, data)
        ids = align_categories(part, detector)
        damage = Damage(data.on_broken, world.is_first)
        damage.note(part.broken, shared=True)
        model, loader = detector.model.to(world.device), eval_loader(part.images, part.category_ids, data.workers, world)
        with autocast(world.device, options.precision):
            results, broken = detect_all(model, loader, ids, world.device, damage.note)
        scores = score_over_processes(part, results, broken, world)
        if world.is_first:
            _say(options, detector, len(part.images) - len(broken), part.name, scores)
            if options.results is not None:
                write_json(options.results, results, indent=None)


def align_categories(part: CocoSet, detector: LoadedDetector) -> list[int | None]:
    """The data's id for each of the detector's labels, by name, or none; a name the detector does not know is refused."""
    ids = {name: number for number, name in part.categories.items()}
    strange = [name for name in ids if name not in detector.categories.values()]
    if strange:
        raise ValueError(f"{part.name} has categories that the detector does not know: {', '.join(strange[:5])}")
    return [ids.get(name) for name in detector.categories.values()]


def _say(options: EvalDetect, detector: LoadedDetector, count: int, file: str, scores: dict[str, float]) -> None:
    console = Console()
    table = Table("", *(f"{kind}, %" for kind in KINDS))
    for name in (*NAMES, *RECALLS):
        table.add_row(name.upper().replace("_", " "), *(_number(scores[f"{kind}_{name}"]) for kind in KINDS))
    console.print(table)
    beside = papers_ap(detector.config, len(detector.categories))
    data = detector.config.data
    sides = f"sides {data.short_px} to {data.long_px} px"
    console.print(f"{detector.config.model.name}, {counted(count, 'picture')} of {file}, {sides}{beside}", markup=False)
    if options.out is not None:
        about = dict(model=detector.config.model.name, count=count, short_px=data.short_px, long_px=data.long_px)
        write_json(options.out, about | scores)


def _number(value: float) -> str:
    return "-" if value < 0 else f"{value:.1f}"
