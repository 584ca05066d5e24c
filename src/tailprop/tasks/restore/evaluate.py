"""`tailprop eval` for restoration: PSNR, SSIM and PSNR-B in SwinIR's protocol, image by image."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailprop.data.broken import BrokenFiles
from tailprop.data.images import check_no_overwrite, unique_paths
from tailprop.data.loader import create_loader
from tailprop.data.samplers import EvalSampler
from tailprop.data.splits import Contents, count_shared
from tailprop.engine.settings import setting
from tailprop.runtime.distributed import World, process_group
from tailprop.tasks.common.options import EvalOptions, override
from tailprop.tasks.common.predictor import progress_bar
from tailprop.tasks.restore.data import RestoreDataConfig, WholeImageDataset
from tailprop.tasks.restore.figures import draw_restored
from tailprop.tasks.restore.inference import check_tiles, evaluate_restorer, shared_px
from tailprop.tasks.restore.load import Restorer, load_restorer
from tailprop.tasks.restore.metrics import Restored, Scores, mean_scores
from tailprop.tasks.restore.task import take_one
from tailprop.utils.files import write_json
from tailprop.utils.text import counted
from tailprop.utils.validation import check_output_folder

__all__ = ["RestoreEval", "run"]


@dataclass(frozen=True)
class RestoreDataChoice:
    """Other images or another degradation than the checkpoint was tested with; what is not given stays as in its run."""

    test: Path | None = None
    """Folder of clean images."""
    degradation: Literal["noise", "jpeg"] | None = setting(None, aliases=("damage",))
    """Gaussian noise, or JPEG compression."""
    sigma: float | None = None
    """Standard deviation of the noise, white being 255."""
    quality: int | None = None
    """Quality of the JPEG encoder."""
    on_broken: Literal["skip", "stop"] | None = None
    """An image that cannot be read: skip and count it, or stop."""


@dataclass(frozen=True)
class RestoreEval(EvalOptions):
    """Measure a restoration network."""

    data: RestoreDataChoice = field(default_factory=RestoreDataChoice)
    tile_px: int | None = None
    """Restore in tiles of this side; none = whole images, as in the protocol."""
    overlap_px: int | None = None
    """Pixels that neighbouring tiles share, at most half of one; none = 32, or a quarter of a smaller tile."""
    images: Path | None = setting(None, aliases=("pictures",))
    """Folder for images: degraded, restored and clean side by side with PSNR."""
    overwrite: bool = False
    """Write over images that are in that folder already."""

    def check(self) -> None:
        super().check()
        check_tiles(self.tile_px, self.overlap_px)
        if self.images is not None:
            check_output_folder("--images", self.images)

    @property
    def shared_px(self) -> int:
        return shared_px(self.tile_px, self.overlap_px, 32)


def run(options: RestoreEval) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        restorer = load_restorer(options.checkpoint)
        data = override(restorer.settings.data, options.data)
        scores = _evaluate(options, restorer, data, world)
        if world.is_main:
            _print(options, restorer, data, scores)


def _evaluate(options: RestoreEval, restorer: Restorer, data: RestoreDataConfig, world: World) -> Scores:
    whole = WholeImageDataset(data.list_test_images(), data, restorer.in_chans)
    broken_files = BrokenFiles(data.on_broken, world.is_main)
    if data.on_broken == "stop":
        broken_files.record(whole.find_broken(), shared=True)
    drawings = _drawings(options, whole, check=world.is_main)
    loader = create_loader(whole, EvalSampler(len(whole), 1, world), take_one, 0, world.device)
    restorer.model.to(world.device)
    with progress_bar("restoring", len(whole) / world.size, Console(), world.is_main) as advance:

        def see(shown: Restored) -> None:
            advance(1)
            if shown.name in drawings:
                drawings[shown.name].parent.mkdir(parents=True, exist_ok=True)
                draw_restored([shown], drawings[shown.name])

        def restore(degraded: torch.Tensor) -> torch.Tensor:
            return restorer.restore(degraded, options.tile_px, options.shared_px, options.precision)

        return evaluate_restorer(restore, loader, world.device, see, broken_files.record)


def _drawings(options: RestoreEval, whole: WholeImageDataset, check: bool) -> dict[str, Path]:
    """Where each image is drawn, if at all; one process looks what is there, another may be drawing already."""
    if options.images is None:
        return {}
    stems = unique_paths([options.images / name for name in whole.names])
    targets = [stem.with_name(f"{stem.name}.png") for stem in stems]
    if check:
        check_no_overwrite(whole.paths, targets, options.overwrite)
    return dict(zip(whole.names, targets, strict=True))


def _print(options: RestoreEval, restorer: Restorer, data: RestoreDataConfig, scores: Scores) -> None:
    console = Console()
    degradation = f"noise, sigma {data.sigma:g}" if data.degradation == "noise" else f"JPEG, quality {data.quality}"
    table = Table("image", "degraded, dB", "PSNR, dB", "SSIM", *(["PSNR-B, dB"] if data.degradation == "jpeg" else []))
    for row in scores.rows:
        table.add_row(*_cells(Text(row.name), asdict(row), data.degradation))
    table.add_row(*_cells(Text(f"mean of {len(scores.rows)}"), mean_scores(scores), data.degradation), style="bold")
    console.print(table)
    tiles = "whole images"
    if options.tile_px is not None:
        tiles = f"tiles of {options.tile_px} px sharing {options.shared_px}, smaller images whole"
    paper = f"; {restorer.paper}" if restorer.paper else ""
    console.print(f"{restorer.name}, {degradation}, {tiles}{paper}", soft_wrap=True)
    if scores.broken:
        console.print(f"{counted(len(scores.broken), 'broken image')} left out, the first: {scores.broken[0]}")
    learned = _count_training_images(restorer.settings.data, data)
    if learned:
        console.print(f"{learned} of the {counted(len(scores.rows), 'image')} are training images of this run (same bytes)")
    if options.out is not None:
        numbers = dict(model=restorer.name, degradation=degradation, tile_px=options.tile_px, overlap_px=options.shared_px)
        rows = [_finite(asdict(row)) for row in scores.rows]
        write_json(options.out, {**numbers, "training_images": learned, "mean": _finite(mean_scores(scores)), "images": rows})


def _count_training_images(own: RestoreDataConfig, data: RestoreDataConfig) -> int | None:
    """How many measured images are among those of the run's training folders, if those can still be read."""
    try:
        known = own.list_train_images() if own.train else []
        return count_shared(Contents.of_files(known), Contents.of_files(data.list_test_images())) if known else None
    except (ValueError, OSError):
        return None


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: the PSNR of an image that nothing degraded is null."""
    return {name: None if value == math.inf else value for name, value in row.items()}


def _cells(name: Text, row: dict[str, float], degradation: str) -> list[Text | str]:
    blocks = [f"{row['psnr_b']:.2f}"] if degradation == "jpeg" else []
    return [name, f"{row['degraded_psnr']:.2f}", f"{row['psnr']:.2f}", f"{row['ssim']:.4f}", *blocks]
