"""`tailprop eval` for restoration: PSNR, SSIM and PSNR-B in SwinIR's protocol, picture by picture."""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

import torch
import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from tailprop.checks import check_at_least
from tailprop.data.loading import EvalOrder, make_loader
from tailprop.data.restore import RestoreDataConfig, WholePictures
from tailprop.distributed import World, join, leave
from tailprop.figures import draw_restored
from tailprop.load_restorer import Restorer, load_restorer
from tailprop.quality import Restored
from tailprop.restoring import Scores, evaluate_restorer, mean_scores
from tailprop.tasks.restore import take_one

__all__ = ["EvalRestore", "run"]


@dataclass(frozen=True)
class TestChoice:
    """Other pictures or another damage than the checkpoint was tested with; what is not given stays as in its run."""

    test: Path | None = None
    """Folder of clean pictures."""
    damage: Literal["noise", "jpeg"] | None = None
    """Gaussian noise, or JPEG compression."""
    sigma: float | None = None
    """Standard deviation of the noise, white being 255."""
    quality: int | None = None
    """Quality of the JPEG encoder."""
    on_broken: Literal["skip", "stop"] | None = None
    """A picture that cannot be read: skip and count it, or stop."""

    def over(self, data: RestoreDataConfig) -> RestoreDataConfig:
        changed = replace(data, **{f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None})
        changed.check()
        return changed


@dataclass(frozen=True)
class EvalRestore:
    """Measure a restoration network."""

    checkpoint: tyro.conf.Positional[str]
    """A run folder, or a file of exported weights."""
    data: TestChoice = field(default_factory=TestChoice)
    tile_px: int | None = None
    """Restore in tiles of this side; none = whole pictures, as in the protocol."""
    overlap_px: int = 32
    """Pixels that neighbouring tiles share."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast type."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to run."""
    threads: int = 0
    """CPU threads; 0 = PyTorch's choice."""
    pictures: Path | None = None
    """Folder for pictures: damaged, restored and clean side by side with PSNR."""
    out: Path | None = None
    """JSON file for the numbers."""

    def check(self) -> None:
        if self.tile_px is not None:
            check_at_least("tile_px", self.tile_px, 16)
        check_at_least("overlap_px", self.overlap_px, 0)


def run(options: EvalRestore) -> None:
    options.check()
    world = join(options.device, options.threads)
    try:
        restorer = load_restorer(options.checkpoint)
        data = options.data.over(restorer.data)
        scores = _evaluate(options, restorer, data, world)
        if scores.broken and data.on_broken == "stop":
            raise ValueError(f"{scores.broken[0]}; mend or remove it, or go on without it (--data.on-broken skip)")
        if world.is_first:
            _say(options, restorer, data, scores)
    finally:
        leave()


def _evaluate(options: EvalRestore, restorer: Restorer, data: RestoreDataConfig, world: World) -> Scores:
    whole = WholePictures(data.test_pictures(), data, restorer.in_chans)
    loader = make_loader(whole, EvalOrder(len(whole), 1, world), take_one, 0, world.device)
    restorer.model.to(world.device)
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    console = Console()
    with Progress(console=console, disable=not (world.is_first and console.is_terminal), transient=True) as progress:
        bar = progress.add_task("restoring", total=len(whole) / world.size)

        def see(shown: Restored) -> None:
            progress.advance(bar, 1)
            if options.pictures is not None:
                draw_restored([shown], options.pictures / f"{Path(shown.name).stem}.png")

        def restore(damaged: torch.Tensor) -> torch.Tensor:
            return restorer.restore(damaged, options.tile_px, options.overlap_px, options.precision)

        return evaluate_restorer(restore, loader, world.device, see)


def _say(options: EvalRestore, restorer: Restorer, data: RestoreDataConfig, scores: Scores) -> None:
    console = Console()
    damage = f"noise, sigma {data.sigma:g}" if data.damage == "noise" else f"JPEG, quality {data.quality}"
    table = Table("picture", "damaged, dB", "PSNR, dB", "SSIM", *(["PSNR-B, dB"] if data.damage == "jpeg" else []))
    for row in scores.rows:
        table.add_row(*_cells(Text(row.name), asdict(row), data.damage))
    table.add_row(*_cells(Text(f"mean of {len(scores.rows)}"), mean_scores(scores), data.damage), style="bold")
    console.print(table)
    tiles = "whole pictures" if options.tile_px is None else f"tiles of {options.tile_px} px sharing {options.overlap_px}"
    paper = f"; {restorer.paper}" if restorer.paper else ""
    console.print(f"{restorer.name}, {damage}, {tiles}{paper}")
    if scores.broken:
        console.print(f"{len(scores.broken)} broken pictures left out, the first: {scores.broken[0]}")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        numbers = dict(model=restorer.name, damage=damage, tile_px=options.tile_px, overlap_px=options.overlap_px)
        rows: list[dict[str, object]] = [asdict(row) for row in scores.rows]
        options.out.write_text(json.dumps({**numbers, "mean": mean_scores(scores), "pictures": rows}, indent=2) + "\n")


def _cells(name: Text, row: dict[str, float], damage: str) -> list[Text | str]:
    blocks = [f"{row['psnr_b']:.2f}"] if damage == "jpeg" else []
    return [name, f"{row['damaged_psnr']:.2f}", f"{row['psnr']:.2f}", f"{row['ssim']:.4f}", *blocks]
