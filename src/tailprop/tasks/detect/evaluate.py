"""`tailprop eval` for a detector: box and mask AP on the data of its run or on any dataset in COCO's format."""

from dataclasses import replace
from pathlib import Path

from tailprop.data.broken import BrokenFiles
from tailprop.data.formats.coco import Masks
from tailprop.runtime.distributed import process_group
from tailprop.runtime.precision import autocast
from tailprop.tasks.common.classes import align_classes
from tailprop.tasks.common.options import override
from tailprop.tasks.common.overlap import count_training_images, describe_overlap
from tailprop.tasks.detect.config import DetectDataConfig
from tailprop.tasks.detect.data import open_coco
from tailprop.tasks.detect.load import ObjectDetector, load_detector
from tailprop.tasks.detect.metrics import NAMES, RECALLS, kinds_of
from tailprop.tasks.detect.options import DetectEval
from tailprop.tasks.detect.task import detect_all, eval_loader, papers_ap, score_over_processes, training_images
from tailprop.utils.files import write_json
from tailprop.utils.terminal import Console, Table
from tailprop.utils.text import counted

__all__ = ["run"]


def run(options: DetectEval) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        detector = load_detector(options.checkpoint, options.short_px, options.long_px)
        data = override(detector.settings.data, options.data, source="coco")  # evaluation does not generate scenes
        masks: Masks = "auto" if detector.detector.has_masks else "no"  # boxes alone are scored if either has no masks
        part = open_coco(data, options.split, masks=masks)
        if options.split == "train":
            part.images = training_images(part, data)
        names = [part.categories[i] for i in part.category_ids]
        indices = align_classes(names, detector.names, part.name)
        own = {index: part.category_ids[i] for i, index in enumerate(indices) if index is not None}
        ids = [own.get(index) for index in range(len(detector.names))]  # category id in the data for each label of the detector
        broken_files = BrokenFiles(data.on_broken, world.is_main)
        broken_files.record(part.broken, shared=True)
        model, loader = detector.model.to(world.device), eval_loader(part, part.category_ids, data.workers, world)
        with autocast(world.device, options.precision):
            results, broken = detect_all(model, loader, ids, world.device, broken_files.record)
        scores = score_over_processes(part, results, broken, world)
        if world.is_main:
            paths = [image.path for image in part.images]
            overlap = count_training_images(lambda: _training_paths(detector.settings.data), paths)
            _print(options, detector, len(part.images) - len(broken), part.name, scores, overlap)
            if options.results is not None:
                write_json(options.results, results, indent=None)


def _training_paths(data: DetectDataConfig) -> list[Path]:
    if data.root is None:
        raise ValueError("weights without their run do not know their training data")
    return [image.path for image in open_coco(replace(data, source="coco"), "train", masks="no").images]


def _print(
    options: DetectEval, detector: ObjectDetector, count: int, file: str, scores: dict[str, float], overlap: int | None
) -> None:
    console = Console()
    kinds = kinds_of("mask_ap" in scores)
    table = Table("", *(f"{kind}, %" for kind in kinds))
    for name in (*NAMES, *RECALLS):
        table.add_row(name.upper().replace("_", " "), *(_number(scores[f"{kind}_{name}"]) for kind in kinds))
    console.print(table)
    settings = detector.settings
    paper, data = papers_ap(settings, len(detector.names)), settings.data
    sides = f"sides {data.short_px} to {data.long_px} px"
    console.print(f"{settings.model.name}, {counted(count, 'image')} of {file}, {sides}{paper}", markup=False)
    if (message := describe_overlap(overlap, count)) is not None:
        console.print(message)
    if options.out is not None:
        about = dict(model=settings.model.name, count=count, short_px=data.short_px, long_px=data.long_px)
        write_json(options.out, about | scores | dict(training_images=overlap))


def _number(value: float) -> str:
    return "-" if value < 0 else f"{value:.1f}"
