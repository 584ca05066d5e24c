"""Options of `tailprop figure`, which are parsed without PyTorch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import tyro

from tailprop.studies.figures import FIGURES, LEAST_PX, MOST_PX, NEED_NOTHING
from tailprop.utils.text import did_you_mean
from tailprop.utils.validation import check_at_least, check_between, check_output_folder

__all__ = ["ALL", "DrawFigure"]

ALL: Final = "all"
_NEED_IMAGES: Final = ("receptive_field", "gates", "diagnostics")


@dataclass(frozen=True)
class DrawFigure:
    """Draw a figure of the paper from any checkpoint: PNG, PDF and the numbers as CSV."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """receptive-field, gates, impulse, sources, diagnostics, complexity, kernels, or all."""
    checkpoint: tuple[str, ...] = ()
    """Run folders, weights files, names of shipped models, or patterns like "runs/*/seed*": networks to compare, and further
    seeds of the same."""
    model: str | None = None
    """Name of the model, for weights that do not contain it."""
    images: Path | None = None
    """Folder of images, searched recursively, or of the Parquet shards of an image dataset (their validation split)."""
    out: Path = Path("figures")
    """Folder for the figures."""
    count: int = 64
    """Images that are averaged, or among which images are picked."""
    size_px: int | None = None
    """Image size; none = that of the run."""
    stage: int = 3
    """Stage whose learned scales an impulse is propagated with, from 1."""
    map_px: int = 65
    """Side of the map of the impulse, in positions."""
    seed: int = 0
    """Seed of the choice of images and of the untrained networks."""
    threads: int = 0
    """CPU threads; 0 = PyTorch's default."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(FIGURES) if self.name == ALL else (self.name.replace("-", "_"),)

    def check(self) -> None:
        if self.name != ALL and self.names[0] not in FIGURES:
            shown = [name.replace("_", "-") for name in FIGURES]
            raise ValueError(f"no figure {self.name!r}; {did_you_mean(self.name, [*shown, ALL])}")
        needed = [name for name in self.names if name not in NEED_NOTHING]
        if needed and not self.checkpoint:
            raise ValueError(f"figure {self.name} needs a trained network; give run folders with --checkpoint")
        if self.images is None and (without := [name for name in self.names if name in _NEED_IMAGES]):
            raise ValueError(f"figure {without[0].replace('_', '-')} needs images; give a folder with --images")
        check_at_least("--count", self.count, 3)  # low, intermediate and high
        check_at_least("--stage", self.stage, 1)
        check_between("--map-px", self.map_px, 9, 257)
        if self.size_px is not None:
            check_between("--size-px", self.size_px, LEAST_PX, MOST_PX)
        check_at_least("--seed", self.seed, 0)
        check_at_least("--threads", self.threads, 0)
        check_output_folder("--out", self.out)
