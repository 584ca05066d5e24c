"""`tailprop figure NAME`: draw a figure of the paper, or all of them, from any checkpoint.

DIR/NAME.png, .pdf   the figure
DIR/NAME.csv         the numbers in it
DIR/kernels.gif      the animation of the kernels
DIR/index.html       all of them with their captions, written by `figure all`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import tyro
from PIL import Image

from tailprop.backbone.model import MIN_SIZE_PX
from tailprop.runtime.allocator import keep_freed_memory
from tailprop.studies.figures import FIGURES, NEED_NOTHING
from tailprop.studies.figures.checkpoints import find_checkpoints
from tailprop.studies.figures.inputs import MOST_PX, Inputs, Picture
from tailprop.studies.figures.network import Network, load_network
from tailprop.studies.figures.page import write_page
from tailprop.tasks.common.bench import write_rows
from tailprop.tasks.common.look import save_figure
from tailprop.tasks.common.predictor import progress_bar
from tailprop.utils.files import write_atomically
from tailprop.utils.text import did_you_mean, say
from tailprop.utils.validation import check_at_least, check_between, check_output_folder

__all__ = ["DrawFigure", "run"]

ALL: Final = "all"

_NEED_OPERATORS: Final = ("gates", "impulse", "sources", "diagnostics")
_NEED_IMAGES: Final = ("receptive_field", "gates", "diagnostics")
_WORK: Final = {"receptive_field": 10.0, "gates": 3.0, "diagnostics": 5.0, "complexity": 6.0, "kernels": 4.0}  # the others: 1


@dataclass(frozen=True)
class DrawFigure:
    """Draw a figure of the paper from any checkpoint: PNG, PDF and the numbers as CSV."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """receptive-field, gates, impulse, sources, diagnostics, complexity, kernels, or all."""
    checkpoint: tuple[str, ...] = ()
    """Run folders or weights files, or patterns like "runs/*/seed*": networks to compare, and further seeds of the same."""
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
            check_between("--size-px", self.size_px, MIN_SIZE_PX, MOST_PX)
        check_at_least("--seed", self.seed, 0)
        check_at_least("--threads", self.threads, 0)
        check_output_folder("--out", self.out)


def run(options: DrawFigure) -> None:
    options.check()
    keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    networks = tuple(load_network(where, options.size_px, options.model) for where in find_checkpoints(options.checkpoint))
    names, left_out = _drawable(options, networks)
    inputs = Inputs(
        networks,
        options.images,
        options.count,
        options.stage,
        options.map_px,
        options.seed,
        fixed_px=options.size_px is not None,
    )
    pictures: list[Picture] = []
    with progress_bar("drawing", round(sum(100 * _WORK.get(name, 1) for name in names))) as advance:
        for name in names:
            work = 100 * _WORK.get(name, 1)
            drawn = import_module(f"tailprop.studies.figures.{name}").draw(
                inputs, lambda share, work=work: advance(share * work)
            )
            for picture in drawn:
                _save(picture, options.out)
            pictures += drawn
    if options.name == ALL:
        write_page(options.out / "index.html", pictures, networks, left_out, _command(options))
    for picture in pictures:
        say(f"{options.out / picture.name}.png: {picture.title.lower()}")
    for line in left_out:
        say(line)
    if options.name == ALL:
        say(f"{options.out / 'index.html'} shows all of them")


def _drawable(options: DrawFigure, networks: Sequence[Network]) -> tuple[list[str], list[str]]:
    """The figures to draw, and why others are left out of `all`; raises for a single one that cannot be drawn."""
    if networks and not any(network.has_operators for network in networks):
        wanted = [name for name in options.names if name in _NEED_OPERATORS]
        if wanted and options.name != ALL:
            networks[0].require_operators(options.name)
        mixers = ", ".join(dict.fromkeys(network.mixer for network in networks))
        reason = f"left out: {', '.join(wanted)}; no checkpoint has a tail propagation operator (mixer: {mixers})"
        return [name for name in options.names if name not in wanted], [reason] if wanted else []
    return list(options.names), []


def _save(picture: Picture, folder: Path) -> None:
    for suffix in ("png", "pdf"):
        save_figure(picture.figure, folder / f"{picture.name}.{suffix}")
    write_rows(folder / f"{picture.name}.csv", picture.rows)
    if picture.frames:
        write_animation(folder / f"{picture.name}.gif", picture.frames)


def write_animation(path: Path, frames: Sequence[Image.Image]) -> None:
    """A GIF with one palette for all frames, so that what does not move is stored once."""
    width, height = frames[0].size
    some = frames[:: max(1, len(frames) // 4)]
    page = Image.new("RGB", (width, height * len(some)))
    for number, frame in enumerate(some):
        page.paste(frame, (0, height * number))
    palette = page.quantize(96, dither=Image.Dither.NONE)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    rest: dict[str, Any] = dict(save_all=True, append_images=others, duration=80, loop=0, optimize=True)
    write_atomically(path, lambda part: first.save(part, "GIF", **rest))


def _command(options: DrawFigure) -> str:
    checkpoints = f" --checkpoint {' '.join(options.checkpoint)}" if options.checkpoint else ""
    images = f" --images {options.images}" if options.images else ""
    return f"tailprop figure {options.name}{checkpoints}{images} --out {options.out}"
