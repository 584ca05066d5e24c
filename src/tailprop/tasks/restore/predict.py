"""`tailprop predict` for restoration: images of any size, gray or colour, 8 or 16 bits, with or without transparency."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tailprop.data.broken import Broken
from tailprop.data.images import check_no_overwrite, list_images, suppress_pillow_warnings, unique_paths
from tailprop.data.raster import Pixels, read_profile, try_pixels, write_pixels
from tailprop.runtime.distributed import process_group
from tailprop.tasks.common.options import PredictOptions
from tailprop.tasks.common.predictor import SkippedImages, print_line, progress_bar
from tailprop.tasks.restore.inference import check_tiles, shared_px
from tailprop.tasks.restore.load import ImageRestorer, load_restorer
from tailprop.utils.terminal import Console
from tailprop.utils.validation import check_at_least

__all__ = ["RestorePredict", "run"]

TILE_PX: Final = 512


@dataclass(frozen=True)
class RestorePredict(PredictOptions):
    """Restore images."""

    out: Path = Path("restored")
    """Folder for the restored images, as PNG."""
    whole_px: int = 1 << 20
    """Images of up to this many pixels are restored whole, larger ones in tiles; 0 = always in tiles."""
    tile_px: int = TILE_PX
    """Side of the tiles."""
    overlap_px: int | None = None
    """Overlap of neighbouring tiles, at most half a tile; none = 64, or a quarter of a small tile."""

    def check(self) -> None:
        check_at_least("whole_px", self.whole_px, 0)
        check_tiles(self.tile_px, self.overlap_px)
        super().check()

    def tile_for(self, pixels: Pixels) -> int | None:
        """The tile size for an image; None = restore it whole."""
        h, w = pixels.shape[:2]
        return None if h * w <= self.whole_px or max(h, w) <= self.tile_px else self.tile_px


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
