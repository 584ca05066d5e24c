"""What `tailprop predict` writes for a segmenter: label maps, overlays, the list of classes. Nothing here imports PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tailprop.data.formats.colors import ColorTable
from tailprop.data.images import check_no_overwrite, save_image, unique_stems
from tailprop.tasks.segment.draw import draw_labels, save_labels, with_legend
from tailprop.tasks.segment.options import SegmentPredict
from tailprop.utils.files import write_text
from tailprop.utils.terminal import Console, Table

__all__ = ["ClassTable", "check_out", "print_table", "save_prediction", "write_classes"]

_NAMED = 6  # classes listed for each image in the table


@dataclass(frozen=True)
class ClassTable:
    """The classes of label maps."""

    names: tuple[str, ...]
    first_label: int
    colors: ColorTable | None

    def text(self) -> str:
        """A table of label values or colours and class names, which `tailprop` can read as a class list."""
        if self.colors is not None:
            return "\n".join(self.colors.lines(self.names)) + "\n"
        rows = [f"{label}\t{name}" for label, name in enumerate(self.names, start=self.first_label)]
        return "\n".join(["Idx\tName", *rows]) + "\n"


def check_out(options: SegmentPredict, paths: Sequence[Path], classes: ClassTable) -> None:
    """Check that nothing is overwritten: label maps in the folder may be hand-made annotations."""
    stems, names = unique_stems(paths), options.out / "classes.txt"
    maps = [options.out / f"{stem}.png" for stem in stems]
    lists = [names] if names.is_file() and names.read_text(encoding="utf-8", errors="replace") != classes.text() else []
    check_no_overwrite(paths, [*maps, *(options.out / f"{stem}_overlay.jpg" for stem in stems), *lists], options.overwrite)


def save_prediction(
    out: Path, stem: str, image: Image.Image, labels: npt.NDArray[np.signedinteger[Any]], classes: ClassTable
) -> str:
    """Save the label map and the overlay of an image; returns its most frequent classes with their shares."""
    counts = np.bincount(labels.ravel(), minlength=len(classes.names))
    save_labels(out / f"{stem}.png", labels, classes.first_label, classes.colors)
    save_image(out / f"{stem}_overlay.jpg", with_legend(draw_labels(image, labels), counts, classes.names))
    order = [i for i in np.argsort(-counts, kind="stable").tolist() if counts[i] > 0]
    return ", ".join(f"{classes.names[i]} {100 * counts[i] / labels.size:.1f}" for i in order[:_NAMED])


def write_classes(out: Path, classes: ClassTable) -> None:
    write_text(out / "classes.txt", classes.text())


def print_table(options: SegmentPredict, table: Table, classes: ClassTable) -> None:
    console = Console()
    console.print(table)
    value = classes.first_label if classes.colors is None else classes.colors.colors[0]
    first = f"{value} = {classes.names[0]}"
    console.print(f"label maps ({first}), overlays and classes.txt in {options.out}", soft_wrap=True)
