"""`tailprop figure NAME`: draw a figure of the paper, or all of them, from any checkpoint.

DIR/NAME.png, .pdf   the figure
DIR/NAME.csv         the numbers in it
DIR/kernels.gif      the animation of the kernels
DIR/index.html       all of them with their captions, written by `figure all`
"""

import shlex
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
from PIL import Image

from tailprop.runtime.allocator import keep_freed_memory
from tailprop.studies.figures.checkpoints import find_checkpoints
from tailprop.studies.figures.inputs import Inputs, Picture
from tailprop.studies.figures.network import Network, load_network
from tailprop.studies.figures.options import ALL, DrawFigure
from tailprop.studies.figures.page import write_page
from tailprop.tasks.common.bench import write_rows
from tailprop.tasks.common.look import save_figure
from tailprop.tasks.common.progress import progress_bar
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
        say(f"{options.out / picture.name}.png: {picture.title}")
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
    """The command line that draws the same again."""
    words = ["tailprop", "figure", options.name]
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name != "name" and value != field.default:
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--{field.name.replace('_', '-')}", *map(str, values)]
    return shlex.join(words)
