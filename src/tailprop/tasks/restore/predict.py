"""`tailprop predict` for restoration: images of any size, gray or colour, 8 or 16 bits, with or without transparency."""

import os
from collections.abc import Sequence
from pathlib import Path

from tailprop.data.broken import Broken
from tailprop.data.images import check_no_overwrite, list_images, suppress_pillow_warnings, unique_paths
from tailprop.data.raster import read_profile, try_pixels, write_pixels
from tailprop.runtime.distributed import process_group
from tailprop.tasks.common.predictor import SkippedImages, print_line, progress_bar
from tailprop.tasks.restore.inference import shared_px
from tailprop.tasks.restore.load import ImageRestorer, load_restorer
from tailprop.tasks.restore.options import RestorePredict
from tailprop.utils.terminal import Console

__all__ = ["run"]


def run(options: RestorePredict) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        if world.is_main:  # under torchrun only rank 0 predicts
            paths = list_images(options.images)
            targets = _targets(paths, options.out)
            check_no_overwrite(paths, targets, options.overwrite)
            restorer = load_restorer(options.checkpoint)
            restorer.model.to(world.device)
            _restore_all(options, restorer, paths, targets)


def _restore_all(options: RestorePredict, restorer: ImageRestorer, paths: Sequence[Path], targets: Sequence[Path]) -> None:
    console = Console(stderr=True)
    skipped = SkippedImages(console, options.on_broken, len(paths))
    with suppress_pillow_warnings(), progress_bar("restoring", len(paths), console) as advance:
        for path, target in zip(paths, targets, strict=True):
            pixels = try_pixels(path)
            if isinstance(pixels, Broken):
                advance(1)
                skipped.add(pixels)
                continue
            tile = options.tile_for(pixels)
            overlap = shared_px(tile, options.overlap_px, 64)
            restored = restorer.restore_pixels(pixels, tile, overlap, options.precision, advance)
            write_pixels(target, restored, read_profile(path))
            how = "whole" if tile is None else f"in tiles of {tile} px"
            print_line(Console(), f"{path} -> {target} ({restored.shape[1]}x{restored.shape[0]}, {how})")


def _targets(paths: Sequence[Path], out: Path) -> list[Path]:
    """The output path of each image: its path below the common folder, with a number added to duplicate names."""
    absolute = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100 - links keep their names
    shared = Path(os.path.commonpath([path.parent for path in absolute]))
    below = [out / path.relative_to(shared) for path in absolute]
    return [path.with_name(f"{path.name}.png") for path in unique_paths(below)]
