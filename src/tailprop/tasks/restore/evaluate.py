"""`tailprop eval` for restoration: PSNR, SSIM and PSNR-B in SwinIR's protocol, picture by picture."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from tailprop.data.broken import Damage
from tailprop.data.images import refuse_what_is_there, unique_paths
from tailprop.data.loader import make_loader
from tailprop.data.samplers import EvalOrder
from tailprop.engine.options import Checkpoint
from tailprop.runtime.distributed import World, together
from tailprop.tasks.restore.data import RestoreDataConfig, WholePictures
from tailprop.tasks.restore.figures import draw_restored
from tailprop.tasks.restore.inference import check_tiles, evaluate_restorer, shared_px
from tailprop.tasks.restore.load import Restorer, load_restorer
from tailprop.tasks.restore.metrics import Restored, Scores, mean_scores
from tailprop.tasks.restore.task import take_one
from tailprop.utils.files import write_json
from tailprop.utils.text import counted
from tailprop.utils.validation import check_output_file, check_output_folder

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

    checkpoint: Checkpoint
    """A run folder, or a file of exported weights."""
    data: TestChoice = field(default_factory=TestChoice)
    tile_px: int | None = None
    """Restore in tiles of this side; none = whole pictures, as in the protocol."""
    overlap_px: int | None = None
    """Pixels that neighbouring tiles share, at most half of one; none = 32, or a quarter of a smaller tile."""
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
    overwrite: bool = False
    """Write over pictures that are in that folder already."""

    def check(self) -> None:
        check_tiles(self.tile_px, self.overlap_px)
        check_output_file("--out", self.out)
        if self.pictures is not None:
            check_output_folder("--pictures", self.pictures)

    @property
    def shared_px(self) -> int:
        return shared_px(self.tile_px, self.overlap_px, 32)


def run(options: EvalRestore) -> None:
    options.check()
    with together(options.device, options.threads) as world:
        restorer = load_restorer(options.checkpoint)
        data = options.data.over(restorer.data)
        scores = _evaluate(options, restorer, data, world)
        if world.is_first:
            _say(options, restorer, data, scores)


def _evaluate(options: EvalRestore, restorer: Restorer, data: RestoreDataConfig, world: World) -> Scores:
    whole = WholePictures(data.test_pictures(), data, restorer.in_chans)
    damage = Damage(data.on_broken, world.is_first)
    if data.on_broken == "stop":
        damage.note(whole.find_broken(), shared=True)
    drawings = _drawings(options, whole, check=world.is_first)
    loader = make_loader(whole, EvalOrder(len(whole), 1, world), take_one, 0, world.device)
    restorer.model.to(world.device)
    console = Console()
    with Progress(console=console, disable=not (world.is_first and console.is_terminal), transient=True) as progress:
        bar = progress.add_task("restoring", total=len(whole) / world.size)

        def see(shown: Restored) -> None:
            progress.advance(bar, 1)
            if shown.name in drawings:
                drawings[shown.name].parent.mkdir(parents=True, exist_ok=True)
                draw_restored([shown], drawings[shown.name])

        def restore(damaged: torch.Tensor) -> torch.Tensor:
            return restorer.restore(damaged, options.tile_px, options.shared_px, options.precision)

        return evaluate_restorer(restore, loader, world.device, see, damage.note)


def _drawings(options: EvalRestore, whole: WholePictures, check: bool) -> dict[str, Path]:
    """Where each picture is drawn, if at all; one process looks what is there, another may be drawing already."""
    if options.pictures is None:
        return {}
    stems = unique_paths([options.pictures / name for name in whole.names])
    targets = [stem.with_name(f"{stem.name}.png") for stem in stems]
    if check:
        refuse_what_is_there(whole.paths, targets, options.overwrite)
    return dict(zip(whole.names, targets, strict=True))


def _say(options: EvalRestore, restorer: Restorer, data: RestoreDataConfig, scores: Scores) -> None:
    console = Console()
    damage = f"noise, sigma {data.sigma:g}" if data.damage == "noise" else f"JPEG, quality {data.quality}"
    table = Table("picture", "damaged, dB", "PSNR, dB", "SSIM", *(["PSNR-B, dB"] if data.damage == "jpeg" else []))
    for row in scores.rows:
        table.add_row(*_cells(Text(row.name), asdict(row), data.damage))
    table.add_row(*_cells(Text(f"mean of {len(scores.rows)}"), mean_scores(scores), data.damage), style="bold")
    console.print(table)
    tiles = "whole pictures"
    if options.tile_px is not None:
        tiles = f"tiles of {options.tile_px} px sharing {options.shared_px}, smaller pictures whole"
    paper = f"; {restorer.paper}" if restorer.paper else ""
    console.print(f"{restorer.name}, {damage}, {tiles}{paper}", soft_wrap=True)
    if scores.broken:
        console.print(f"{counted(len(scores.broken), 'broken picture')} left out, the first: {scores.broken[0]}")
    if options.out is not None:
        numbers = dict(model=restorer.name, damage=damage, tile_px=options.tile_px, overlap_px=options.shared_px)
        rows = [_finite(asdict(row)) for row in scores.rows]
        write_json(options.out, {**numbers, "mean": _finite(mean_scores(scores)), "pictures": rows})


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: the PSNR of a picture that nothing damaged is null."""
    return {name: None if value == math.inf else value for name, value in row.items()}


def _cells(name: Text, row: dict[str, float], damage: str) -> list[Text | str]:
    blocks = [f"{row['psnr_b']:.2f}"] if damage == "jpeg" else []
    return [name, f"{row['damaged_psnr']:.2f}", f"{row['psnr']:.2f}", f"{row['ssim']:.4f}", *blocks]
