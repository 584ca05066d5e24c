"""`tailprop eval` for restoration: PSNR, SSIM and PSNR-B of every image, in SwinIR's protocol."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tailprop.data.broken import BrokenFiles
from tailprop.data.images import check_no_overwrite, unique_paths
from tailprop.data.loader import create_loader
from tailprop.data.samplers import EvalSampler
from tailprop.runtime.distributed import World, process_group
from tailprop.tasks.common.overlap import count_training_images, describe_overlap
from tailprop.tasks.common.progress import progress_bar
from tailprop.tasks.restore.config import RestoreDataConfig
from tailprop.tasks.restore.data import WholeImageDataset
from tailprop.tasks.restore.figures import draw_restored
from tailprop.tasks.restore.inference import evaluate_restorer, in_colour
from tailprop.tasks.restore.load import ImageRestorer, load_restorer
from tailprop.tasks.restore.metrics import Restored, Scores, mean_scores
from tailprop.tasks.restore.options import RestoreEval
from tailprop.tasks.restore.task import take_one
from tailprop.utils.files import make_folder, write_json
from tailprop.utils.terminal import Console, Table
from tailprop.utils.text import counted

__all__ = ["run"]


def run(options: RestoreEval) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        restorer = load_restorer(options.checkpoint)
        data = options.data.over(restorer.settings.data)
        scores = _evaluate(options, restorer, data, world)
        if world.is_main:
            _print(options, restorer, data, scores)


def _evaluate(options: RestoreEval, restorer: ImageRestorer, data: RestoreDataConfig, world: World) -> Scores:
    whole = WholeImageDataset(data.list_test_images(), data, restorer.in_chans)
    broken_files = BrokenFiles(data.on_broken, world.is_main)
    if data.on_broken == "stop":
        broken_files.record(whole.find_broken(), shared=True)
    figures = _figure_paths(options, whole, check=world.is_main)
    loader = create_loader(whole, EvalSampler(len(whole), 1, world), take_one, 0, world.device)
    restorer.model.to(world.device)
    with progress_bar("restoring", len(whole) / world.size, Console(), world.is_main) as advance:

        def draw(image: Restored) -> None:
            advance(1)
            if image.name in figures:
                make_folder(figures[image.name].parent)
                draw_restored([image], figures[image.name], before=data.before)

        def restore(degraded: torch.Tensor) -> torch.Tensor:
            return restorer.restore(degraded, options.tile_px, options.shared_px, options.precision)

        return evaluate_restorer(
            lambda degraded: in_colour(restore, degraded, restorer.in_chans),
            loader,
            world.device,
            draw,
            broken_files.record,
            protocol=data.protocol,
        )


def _figure_paths(options: RestoreEval, whole: WholeImageDataset, check: bool) -> dict[str, Path]:
    """The path of each image's figure. Only one process checks for existing files: others may already be writing theirs."""
    if options.images is None:
        return {}
    stems = unique_paths([options.images / name for name in whole.names])
    targets = [stem.with_name(f"{stem.name}.png") for stem in stems]
    if check:
        check_no_overwrite(whole.paths, targets, options.overwrite)
    return dict(zip(whole.names, targets, strict=True))


def _print(options: RestoreEval, restorer: ImageRestorer, data: RestoreDataConfig, scores: Scores) -> None:
    console = Console()
    degradation = _describe(data)
    table = Table("image", f"{data.before}, dB", "PSNR, dB", "SSIM", *(["PSNR-B, dB"] if data.degradation == "jpeg" else []))
    for row in scores.rows:
        table.add_row(*_cells(row.name, asdict(row), data.degradation))
    table.add_row(*_cells(f"mean of {len(scores.rows)}", mean_scores(scores), data.degradation), style="bold")
    console.print(table)
    tiles = "whole images"
    if options.tile_px is not None:
        tiles = f"tiles of {options.tile_px} px sharing {options.shared_px}, smaller images whole"
    paper = f"; {restorer.paper}" if restorer.paper else ""
    console.print(f"{restorer.name}, {degradation}, {tiles}{paper}", soft_wrap=True)
    if scores.broken:
        console.print(f"{counted(len(scores.broken), 'broken image')} skipped, the first: {scores.broken[0]}")
    overlap = count_training_images(restorer.settings.data.list_train_images, data.list_test_images())
    if (message := describe_overlap(overlap, len(scores.rows))) is not None:
        console.print(message)
    if options.out is not None:
        numbers = dict(model=restorer.name, degradation=degradation, tile_px=options.tile_px, overlap_px=options.shared_px)
        rows = [_finite(asdict(row)) for row in scores.rows]
        write_json(options.out, {**numbers, "training_images": overlap, "mean": _finite(mean_scores(scores)), "images": rows})


def _describe(data: RestoreDataConfig) -> str:
    """The degradation as text."""
    enlarged = f"x{data.scale} on luma without {data.protocol.border_px} px of border"
    return {
        "noise": f"noise, sigma {data.sigma:g}",
        "jpeg": f"JPEG, quality {data.quality}",
        "downscale": f"bicubic, {enlarged}",
        "pairs": "pairs" if data.scale == 1 else f"pairs, {enlarged}",
    }[data.degradation]


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """Replace infinity, the PSNR of an image without degradation, by None: JSON has no infinity."""
    return {name: None if value == math.inf else value for name, value in row.items()}


def _cells(name: str, row: dict[str, float], degradation: str) -> list[str]:
    blocks = [f"{row['psnr_b']:.2f}"] if degradation == "jpeg" else []
    return [name, f"{row['degraded_psnr']:.2f}", f"{row['psnr']:.2f}", f"{row['ssim']:.4f}", *blocks]
