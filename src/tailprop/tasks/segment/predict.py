"""`tailprop predict` for a segmenter: label maps as PNGs, and pictures tinted by class with a legend."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from tailprop.data.broken import Broken
from tailprop.data.images import list_pictures, quiet_pillow, read_picture, refuse_what_is_there, unique_stems
from tailprop.data.loader import to_device
from tailprop.runtime.distributed import together
from tailprop.runtime.precision import autocast
from tailprop.tasks.common.predict import Answering, Skipped
from tailprop.tasks.segment.draw import draw_labels, save_labels, with_legend
from tailprop.tasks.segment.evaluate import InferenceChoice
from tailprop.tasks.segment.load import LoadedSegmenter, load_segmenter
from tailprop.utils.text import printable

NAMED = 6  # classes of a picture in the table
__all__ = ["PredictSegment", "run"]


@dataclass(frozen=True)
class PredictSegment(Answering):
    """Say what every pixel of pictures shows."""

    out: Path = Path("segmented")
    """Folder for NAME.png (label map, numbers as in the training data), NAME_overlay.jpg and classes.txt."""
    inference: InferenceChoice = field(default_factory=InferenceChoice)


def run(options: PredictSegment) -> None:
    options.check()
    with together(options.device, options.threads) as world:
        if world.is_first:  # under torchrun one process answers, once
            paths = list_pictures(options.pictures)
            segmenter = load_segmenter(options.checkpoint)
            config = replace(segmenter.config, inference=options.inference.over(segmenter.config.inference))
            segmenter = replace(segmenter, config=config, model=segmenter.model.to(world.device))
            options.out.mkdir(parents=True, exist_ok=True)
            _guard(options, paths, _list(segmenter))
            with quiet_pillow(), autocast(world.device, options.precision):
                table = _look_at_all(options, segmenter, paths, world.device)
            _say(options, table, segmenter)


def _guard(options: PredictSegment, paths: Sequence[Path], classes: str) -> None:
    """Label maps in the folder may be the ones that were drawn by hand."""
    stems, names = unique_stems(paths), options.out / "classes.txt"
    maps = [options.out / f"{stem}.png" for stem in stems]
    lists = [names] if names.exists() and names.read_text(errors="replace") != classes else []
    refuse_what_is_there(paths, [*maps, *(options.out / f"{stem}_overlay.jpg" for stem in stems), *lists], options.overwrite)


def _list(segmenter: LoadedSegmenter) -> str:
    """The table of labels and names, which `tailprop` reads as a list of classes."""
    rows = [f"{label}\t{name}" for label, name in enumerate(segmenter.classes, start=segmenter.first_label)]
    return "\n".join(["Idx\tName", *rows]) + "\n"


def _look_at_all(options: PredictSegment, segmenter: LoadedSegmenter, paths: Sequence[Path], device: torch.device) -> Table:
    table = Table("picture", "size", "classes, % of pixels")
    quiet = not Console().is_terminal
    skipped = Skipped(Console(stderr=True), options.on_broken, len(paths))
    pairs = list(zip(paths, unique_stems(paths), strict=True))
    for path, stem in track(pairs, "looking", transient=True, disable=quiet):
        picture = read_picture(path, "RGB")
        if isinstance(picture, Broken):
            skipped.add(picture)
            continue
        image = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
        labels = segmenter.label(to_device(image, device)).cpu().numpy()
        counts = np.bincount(labels.ravel(), minlength=len(segmenter.classes))
        save_labels(options.out / f"{stem}.png", labels, segmenter.first_label)
        with_legend(draw_labels(picture, labels), counts, segmenter.classes).save(
            options.out / f"{stem}_overlay.jpg", quality=92
        )
        most = [int(i) for i in np.argsort(-counts, kind="stable")[:NAMED] if counts[i] > 0]
        named = ", ".join(f"{segmenter.classes[i]} {100 * counts[i] / labels.size:.1f}" for i in most)
        table.add_row(Text(printable(str(path))), f"{picture.width}x{picture.height}", Text(named))
    return table


def _say(options: PredictSegment, table: Table, segmenter: LoadedSegmenter) -> None:
    (options.out / "classes.txt").write_text(_list(segmenter))
    console = Console()
    console.print(table)
    first = segmenter.first_label
    said = f"label maps ({first} = {segmenter.classes[0]}), overlays and classes.txt in {options.out}"
    console.print(said, soft_wrap=True, markup=False)
