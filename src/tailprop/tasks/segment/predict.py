"""`tailprop predict` for a segmenter: label maps as PNGs, and images tinted by class with a legend."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tailprop.data.broken import Broken
from tailprop.data.images import check_no_overwrite, list_images, read_image, save_image, suppress_pillow_warnings, unique_stems
from tailprop.runtime.distributed import process_group
from tailprop.tasks.common.predictor import SkippedImages, progress_bar
from tailprop.tasks.segment.draw import draw_labels, save_labels, with_legend
from tailprop.tasks.segment.load import ImageSegmenter, LabelMap, load_segmenter
from tailprop.tasks.segment.options import SegmentPredict
from tailprop.utils.files import make_folder, write_text
from tailprop.utils.terminal import Console, Table

NAMED = 6  # classes listed for each image in the table
__all__ = ["run"]


def run(options: SegmentPredict) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        if world.is_main:  # under torchrun only rank 0 predicts
            paths = list_images(options.images)
            segmenter = load_segmenter(options.checkpoint)
            settings = replace(segmenter.settings, inference=options.inference.over(segmenter.settings.inference))
            segmenter = replace(segmenter, settings=settings, model=segmenter.model.to(world.device))
            make_folder(options.out)
            _check_out(options, paths, _class_list(segmenter))
            with suppress_pillow_warnings():
                table = _label_all(options, segmenter, paths)
            write_text(options.out / "classes.txt", _class_list(segmenter))
            _print(options, table, segmenter)


def _check_out(options: SegmentPredict, paths: Sequence[Path], classes: str) -> None:
    """Check that nothing is overwritten: label maps in the folder may be hand-made annotations."""
    stems, names = unique_stems(paths), options.out / "classes.txt"
    maps = [options.out / f"{stem}.png" for stem in stems]
    lists = [names] if names.is_file() and names.read_text(encoding="utf-8", errors="replace") != classes else []
    check_no_overwrite(paths, [*maps, *(options.out / f"{stem}_overlay.jpg" for stem in stems), *lists], options.overwrite)


def _class_list(segmenter: ImageSegmenter) -> str:
    """A table of label values or colours and class names, which `tailprop` can read as a class list."""
    if segmenter.colors is not None:
        return "\n".join(segmenter.colors.lines(segmenter.names)) + "\n"
    rows = [f"{label}\t{name}" for label, name in enumerate(segmenter.names, start=segmenter.first_label)]
    return "\n".join(["Idx\tName", *rows]) + "\n"


def _label_all(options: SegmentPredict, segmenter: ImageSegmenter, paths: Sequence[Path]) -> Table:
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
            labels, counts = found.labels.numpy(), found.counts.numpy()
            save_labels(options.out / f"{stem}.png", labels, segmenter.first_label, segmenter.colors)
            overlay = with_legend(draw_labels(image, labels), counts, segmenter.names)
            save_image(options.out / f"{stem}_overlay.jpg", overlay)
            named = ", ".join(f"{name} {100 * share:.1f}" for name, share in list(found.shares.items())[:NAMED])
            table.add_row(str(path), f"{image.width}x{image.height}", named)
    return table


def _print(options: SegmentPredict, table: Table, segmenter: ImageSegmenter) -> None:
    console = Console()
    console.print(table)
    value = segmenter.first_label if segmenter.colors is None else segmenter.colors.colors[0]
    first = f"{value} = {segmenter.names[0]}"
    console.print(f"label maps ({first}), overlays and classes.txt in {options.out}", soft_wrap=True)
