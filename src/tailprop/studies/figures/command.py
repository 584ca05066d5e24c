"""`tailprop figure NAME`: draw a figure of the paper, or all of them, from any checkpoint.

DIR/NAME.png, .pdf   the figure
DIR/NAME.csv         the numbers in it
DIR/kernels.gif      the animation of the kernels
DIR/index.html       all of them with their captions, written by `figure all`
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
from PIL import Image

from tailprop.runtime.allocator import keep_freed_memory
from tailprop.studies.figures.inputs import Inputs, Picture
from tailprop.studies.figures.network import Network, load_network
from tailprop.studies.figures.options import ALL, DrawFigure
from tailprop.studies.figures.page import write_page
from tailprop.tasks.common.bench import write_rows
from tailprop.tasks.common.look import save_figure
from tailprop.tasks.common.predictor import progress_bar
from tailprop.utils.files import write_atomically
from tailprop.utils.text import say

__all__ = ["run"]

_NEED_OPERATORS: Final = ("gates", "impulse", "sources", "diagnostics")
_WORK: Final = {"receptive_field": 10.0, "gates": 3.0, "diagnostics": 5.0, "complexity": 6.0, "kernels": 4.0}  # the others: 1


def run(options: DrawFigure) -> None:
    options.check()
    keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    networks = tuple(load_network(where, options.size_px) for where in options.checkpoint)
    names, left_out = _drawable(options, networks)
    inputs = Inputs(networks, options.images, options.count, options.stage, options.map_px, options.seed)
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
        frames = [frame.quantize(128, dither=Image.Dither.NONE) for frame in picture.frames]
        rest: dict[str, Any] = dict(save_all=True, append_images=frames[1:], duration=80, loop=0, optimize=True)
        write_atomically(folder / f"{picture.name}.gif", lambda part: frames[0].save(part, "GIF", **rest))


def _command(options: DrawFigure) -> str:
    checkpoints = f" --checkpoint {' '.join(options.checkpoint)}" if options.checkpoint else ""
    images = f" --images {options.images}" if options.images else ""
    return f"tailprop figure {options.name}{checkpoints}{images} --out {options.out}"
