"""`tailprop predict` for restoration: images of any size, gray or colour, 8 or 16 bits, with or without transparency."""

from collections.abc import Callable

from tailprop.data.images import list_images
from tailprop.data.raster import Pixels
from tailprop.runtime.distributed import process_group
from tailprop.tasks.restore.load import load_restorer
from tailprop.tasks.restore.options import RestorePredict
from tailprop.tasks.restore.report import Restore, restore_files

__all__ = ["run"]


def run(options: RestorePredict) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        if world.is_main:  # under torchrun only rank 0 predicts

            def load() -> Restore:
                restorer = load_restorer(options.checkpoint)
                restorer.model.to(world.device)

                def restore(pixels: Pixels, tile: int | None, overlap: int, tick: Callable[[float], object]) -> Pixels:
                    return restorer.restore_pixels(pixels, tile, overlap, options.precision, tick)

                return restore

            restore_files(options, list_images(options.images), load)
