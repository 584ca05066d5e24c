"""`tailprop predict` for restoration: pictures of any size, gray or colour, 8 or 16 bits, with or without transparency."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.images import list_pictures, quiet_pillow, refuse_what_is_there, unique_paths
from tailprop.data.raster import Pixels, peak, read_profile, try_pixels, write_pixels
from tailprop.runtime.distributed import together
from tailprop.tasks.common.predict import Answering, Skipped, say
from tailprop.tasks.restore.degrade import to_unit
from tailprop.tasks.restore.inference import check_tiles, shared_px
from tailprop.tasks.restore.load import Restorer, load_restorer
from tailprop.utils.validation import check_at_least

__all__ = ["PredictRestore", "restore_pixels", "run"]

TILE_PX: Final = 512


@dataclass(frozen=True)
class PredictRestore(Answering):
    """Restore pictures."""

    out: Path = Path("restored")
    """Folder for the restored pictures, as PNG."""
    whole_px: int = 1 << 20
    """Pictures of up to this many pixels are restored whole, larger ones in tiles; 0 = tiles always."""
    tile_px: int = TILE_PX
    """Side of the tiles."""
    overlap_px: int | None = None
    """Pixels that neighbouring tiles share, at most half of one; none = 64, or a quarter of a smaller tile."""

    def check(self) -> None:
        check_at_least("whole_px", self.whole_px, 0)
        check_tiles(self.tile_px, self.overlap_px)
        super().check()

    def tile_for(self, pixels: Pixels) -> int | None:
        """The side of the tiles for a picture; none = whole."""
        h, w = pixels.shape[:2]
        return None if h * w <= self.whole_px or max(h, w) <= self.tile_px else self.tile_px


def run(options: PredictRestore) -> None:
    options.check()
    with together(options.device, options.threads) as world:
        if world.is_first:  # under torchrun one process answers, once
            paths = list_pictures(options.pictures)
            targets = _targets(paths, options.out)
            refuse_what_is_there(paths, targets, options.overwrite)
            restorer = load_restorer(options.checkpoint)
            restorer.model.to(world.device)
            _restore_all(options, restorer, paths, targets, world.device)


def _restore_all(
    options: PredictRestore, restorer: Restorer, paths: Sequence[Path], targets: Sequence[Path], device: torch.device
) -> None:
    notes = Console(stderr=True)
    skipped = Skipped(notes, options.on_broken, len(paths))
    with quiet_pillow(), Progress(console=notes, transient=True, disable=not notes.is_terminal) as progress:
        bar = progress.add_task("restoring", total=len(paths))
        for number, (path, target) in enumerate(zip(paths, targets, strict=True)):
            progress.update(bar, completed=number)
            pixels = try_pixels(path)
            if isinstance(pixels, Broken):
                skipped.add(pixels)
                continue
            tile = options.tile_for(pixels)
            how_tiled = (tile, shared_px(tile, options.overlap_px, 64))
            tick = partial(progress.advance, bar)
            restored = restore_pixels(restorer, pixels, device, *how_tiled, options.precision, tick)
            write_pixels(target, restored, read_profile(path))
            how = "whole" if tile is None else f"in tiles of {tile} px"
            say(Console(), f"{path} -> {target} ({pixels.shape[1]}x{pixels.shape[0]}, {how})")


def restore_pixels(
    restorer: Restorer,
    pixels: Pixels,
    device: torch.device,
    tile_px: int | None = None,
    overlap_px: int = 64,
    precision: str = "fp32",
    tick: Callable[[float], object] = lambda _share: None,
) -> Pixels:
    """A restored picture with the bits, the channels and the transparency of the given one, (H, W, C).

    A gray network restores each channel of a colour picture by itself; a colour network sees gray as three equal channels, and
    their mean is taken. `tick` is told the share that is done with every tile.
    """
    colours = 1 if pixels.shape[2] <= 2 else 3
    damaged = torch.from_numpy(np.moveaxis(to_unit(pixels[..., :colours]), -1, 0).copy()).to(device)  # (colours, H, W)

    rounds = colours if restorer.in_chans == 1 else 1

    def restore(image: Tensor) -> Tensor:  # (1, in_chans, H, W)
        return restorer.restore(image, tile_px, overlap_px, precision, lambda share: tick(share / rounds))

    if restorer.in_chans == 1:
        restored = torch.cat([restore(channel[None, None])[0] for channel in damaged])
    elif colours == 1:
        restored = restore(damaged.expand(3, -1, -1)[None])[0].mean(0, keepdim=True)
    else:
        restored = restore(damaged[None])[0]
    top = peak(pixels)
    values = (restored.clamp(0, 1) * top).round().cpu().numpy().astype(pixels.dtype)
    return np.concatenate([np.moveaxis(values, 0, -1), pixels[..., colours:]], axis=2)


def _targets(paths: Sequence[Path], out: Path) -> list[Path]:
    """Where each picture goes: under its own name below the folder they all share, two of one name told apart by a number."""
    absolute = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100 - links keep their names
    shared = Path(os.path.commonpath([path.parent for path in absolute]))
    below = [out / path.relative_to(shared) for path in absolute]
    return [path.with_name(f"{path.name}.png") for path in unique_paths(below)]
