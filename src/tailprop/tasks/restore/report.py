"""What `tailprop predict` writes for a restorer: an image for each image. Nothing here imports PyTorch."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tailprop.data.broken import Broken
from tailprop.data.images import check_no_overwrite, suppress_pillow_warnings, unique_paths
from tailprop.data.raster import Pixels, read_profile, try_pixels, write_pixels
from tailprop.tasks.common.progress import SkippedImages, print_line, progress_bar
from tailprop.tasks.restore.options import RestorePredict
from tailprop.tasks.restore.tiles import shared_px
from tailprop.utils.terminal import Console

__all__ = ["Restore", "restore_files"]

# Restores pixels (H, W, C), in tiles of a size with an overlap; the last argument is called with shares of the work.
Restore = Callable[[Pixels, int | None, int, Callable[[float], object]], Pixels]


def restore_files(options: RestorePredict, paths: Sequence[Path], load: Callable[[], Restore]) -> None:
    """Restore image files; the network is loaded when it is known that nothing is overwritten."""
    targets = _targets(paths, options.out)
    check_no_overwrite(paths, targets, options.overwrite)
    restore, console = load(), Console(stderr=True)
    skipped = SkippedImages(console, options.on_broken, len(paths))
    with suppress_pillow_warnings(), progress_bar("restoring", len(paths), console) as advance:
        for path, target in zip(paths, targets, strict=True):
            pixels = try_pixels(path)
            if isinstance(pixels, Broken):
                advance(1)
                skipped.add(pixels)
                continue
            tile = options.tile_for(pixels)
            restored = restore(pixels, tile, shared_px(tile, options.overlap_px, 64), advance)
            write_pixels(target, restored, read_profile(path))
            how = "whole" if tile is None else f"in tiles of {tile} px"
            print_line(Console(), f"{path} -> {target} ({restored.shape[1]}x{restored.shape[0]}, {how})")


def _targets(paths: Sequence[Path], out: Path) -> list[Path]:
    """The output path of each image: its path below the common folder, with a number added to duplicate names."""
    absolute = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100 - links keep their names
    shared = Path(os.path.commonpath([path.parent for path in absolute]))
    below = [out / path.relative_to(shared) for path in absolute]
    return [path.with_name(f"{path.name}.png") for path in unique_paths(below)]
