"""`tailprop predict` for the problems that need reach: the answers as pictures."""

import numpy as np

from tailprop.data.broken import Broken
from tailprop.data.images import check_no_overwrite, list_images, read_image, suppress_pillow_warnings, unique_stems
from tailprop.data.raster import write_pixels
from tailprop.runtime.distributed import process_group
from tailprop.tasks.common.progress import SkippedImages, print_line, progress_bar
from tailprop.tasks.reach.load import load_reach
from tailprop.tasks.reach.options import ReachPredict
from tailprop.utils.terminal import Console

__all__ = ["run"]


def run(options: ReachPredict) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        if not world.is_main:  # under torchrun only rank 0 predicts
            return
        paths = list_images(options.images)
        targets = [options.out / f"{stem}.png" for stem in unique_stems(paths)]
        check_no_overwrite(paths, targets, options.overwrite)
        solver = load_reach(options.checkpoint)
        solver.model.to(world.device)
        console = Console(stderr=True)
        skipped = SkippedImages(console, options.on_broken, len(paths))
        with suppress_pillow_warnings(), progress_bar("answering", len(paths), console) as advance:
            for path, target in zip(paths, targets, strict=True):
                image = read_image(path, "RGB")
                if isinstance(image, Broken):
                    skipped.add(image)
                else:
                    write_pixels(target, solver.solve(np.asarray(image), options.precision))
                    print_line(Console(), f"{path} -> {target}")
                advance(1)
