"""Options of `tailprop robustness`.

Nothing here imports PyTorch before the corruptions are checked: --help and wrong options need none.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tailprop.engine.options import Checkpoint
from tailprop.engine.settings import setting
from tailprop.studies.imagenet_c import SEVERITIES
from tailprop.tasks.classify.options import DataChoice
from tailprop.tasks.common.options import ComputeOptions
from tailprop.utils.validation import check_at_least, check_output_file

__all__ = ["IMAGENET_A", "IMAGENET_C", "IMAGENET_R", "IMAGENET_V2", "OPTIONS", "SKETCH", "Robustness"]

SKETCH, IMAGENET_A, IMAGENET_R, IMAGENET_V2 = "ImageNet-Sketch", "ImageNet-A", "ImageNet-R", "ImageNet-V2"
IMAGENET_C = "ImageNet-C"
OPTIONS: Final = {"sketch": SKETCH, "imagenet_a": IMAGENET_A, "imagenet_r": IMAGENET_R, "imagenet_v2": IMAGENET_V2}


@dataclass(frozen=True)
class Robustness(ComputeOptions):
    """Evaluate a classifier on out-of-distribution images."""

    checkpoint: Checkpoint
    """A run folder, a weights file, or the name of a pretrained timm model."""
    model: str | None = None
    """timm name of the architecture, if the checkpoint does not contain it."""
    sketch: Path | None = None
    """ImageNet-Sketch: its 1000 folders, or a parquet snapshot."""
    imagenet_a: Path | None = None
    """ImageNet-A: its 200 folders, or a parquet snapshot."""
    imagenet_r: Path | None = None
    """ImageNet-R: its 200 folders, or a parquet snapshot."""
    imagenet_v2: Path | None = None
    """ImageNet-V2: its folders 0 to 999, or a parquet snapshot."""
    imagenet_c: Path | None = None
    """ImageNet-C: the folder with a folder for each corruption, with 1 to 5 in it, and in these the classes."""
    corrupt: tuple[str, ...] = ()
    """Corruptions of the validation images, by ImageNet-C's names; all = every corruption."""
    severities: tuple[int, ...] = SEVERITIES
    """Severities of the corruptions, from 1 to 5."""
    data: DataChoice = field(default_factory=DataChoice)
    limit: int = 0
    """Largest number of images of each dataset, evenly spaced; 0 = all."""
    batch_size: int = setting(64, aliases=("batch",))
    """Images per batch."""
    out: Path | None = None
    """CSV file for the results, updated after each measurement."""

    def check(self) -> None:
        super().check()
        check_at_least("batch_size", self.batch_size, 1)
        check_at_least("limit", self.limit, 0)
        check_output_file("--out", self.out)
        given = {name: path for name in (*OPTIONS, "imagenet_c") if (path := getattr(self, name)) is not None}
        if not given and not self.corrupt:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in (*OPTIONS, "imagenet_c"))
            raise ValueError(f"nothing to evaluate; give {names} or --corrupt (all, or names)")
        for name, path in given.items():
            if not path.is_dir():
                raise ValueError(f"no folder {path}; --{name.replace('_', '-')} takes the folder of the dataset")
        self._check_corruptions()

    def _check_corruptions(self) -> None:
        from tailprop.studies.corruptions import check_corruption, check_severity

        for name in self.corrupt:
            if name != "all":
                check_corruption(name)
        if not self.severities:
            raise ValueError("--severities is empty; give at least one from 1 to 5")
        for severity in self.severities:
            check_severity(severity)

    @property
    def corruptions(self) -> tuple[str, ...]:
        from tailprop.studies.corruptions import CORRUPTIONS

        return tuple(CORRUPTIONS) if "all" in self.corrupt else tuple(dict.fromkeys(self.corrupt))

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.severities)))
