"""`tailprop predict` for a segmenter: label maps as PNGs, and images tinted by class with a legend."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tailprop.data.broken import Broken
from tailprop.data.images import list_images, read_image, suppress_pillow_warnings, unique_stems
from tailprop.runtime.distributed import process_group
from tailprop.tasks.common.progress import SkippedImages, progress_bar
from tailprop.tasks.segment.load import ImageSegmenter, LabelMap, load_segmenter
from tailprop.tasks.segment.options import SegmentPredict
from tailprop.tasks.segment.report import ClassTable, check_out, print_table, save_prediction, write_classes
from tailprop.utils.files import make_folder
from tailprop.utils.terminal import Console, Table

__all__ = ["run"]


def run(options: SegmentPredict) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        if world.is_main:  # under torchrun only rank 0 predicts
            paths = list_images(options.images)
            segmenter = load_segmenter(options.checkpoint)
            settings = replace(segmenter.settings, inference=options.inference.over(segmenter.settings.inference))
            segmenter = replace(segmenter, settings=settings, model=segmenter.model.to(world.device))
            classes = ClassTable(segmenter.names, segmenter.first_label, segmenter.colors)
            make_folder(options.out)
            check_out(options, paths, classes)
            with suppress_pillow_warnings():
                table = _label_all(options, segmenter, paths, classes)
            write_classes(options.out, classes)
            print_table(options, table, classes)


def _label_all(options: SegmentPredict, segmenter: ImageSegmenter, paths: Sequence[Path], classes: ClassTable) -> Table:
    table, console = Table("image", "size", "classes, % of pixels"), Console(stderr=True)
    skipped = SkippedImages(console, options.on_broken, len(paths))
    with progress_bar("segmenting", len(paths), console) as advance:
        for path, stem in zip(paths, unique_stems(paths), strict=True):
            advance(1)
            image = read_image(path, "RGB")
            if isinstance(image, Broken):
                skipped.add(image)
                continue
            found: LabelMap = segmenter.predict(image, options.precision)
            named = save_prediction(options.out, stem, image, found.labels.numpy(), classes)
            table.add_row(str(path), f"{image.width}x{image.height}", named)
    return table
