"""`tailprop restorers`: compare mixers in the same restoration network, with the same data and the same CPU time.

Every network is trained on the same crops in the same order, with the same shape of schedule; a faster one takes more steps.
Finished runs are kept, so the study can be run in parts (--only), and the table is written from all finished runs.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from tailprop.backbone.operator import TailPropagation
from tailprop.engine.launch import train
from tailprop.engine.optim import build_optimizer
from tailprop.engine.recipes import find_recipe, read_recipe
from tailprop.engine.run_folder import RunFolder
from tailprop.engine.settings import build
from tailprop.runtime.distributed import World, init_distributed
from tailprop.runtime.provenance import provenance
from tailprop.tasks import find_spec
from tailprop.tasks.common.bench import write_rows
from tailprop.tasks.common.figures import draw_curves
from tailprop.tasks.restore.config import RestoreConfig
from tailprop.tasks.restore.model import RESTORERS
from tailprop.tasks.restore.task import Restoration
from tailprop.utils.files import write_json
from tailprop.utils.parsing import parse_json, read_bytes
from tailprop.utils.terminal import Console, Table
from tailprop.utils.validation import check_choice

NETWORKS: Final = ("tailprop_ir_light", "vheat_ir_light", "waveformer_ir_light", "swinir_light", "dncnn", "identity_ir_light")
DONE: Final = "done.json"


@dataclass(frozen=True)
class RestorerStudy:
    """Compare restoration networks at equal training time."""

    train: tuple[Path, ...]
    """Folders of clean training images."""
    test: Path
    """Folder of clean test images."""
    recipe: str = "train400_gray_s15"
    """Recipe with the shared settings; its number of epochs is replaced."""
    minutes: float = 30.0
    """Minutes of CPU time for each network, without evaluation."""
    only: tuple[str, ...] = NETWORKS
    """Networks to train now."""
    runs: Path = Path("runs/restorers")
    """Folder for the run folders, one per network."""
    out: Path = Path("results/restorers.csv")
    """CSV file for the results of all finished runs; the curves are saved next to it as PNG."""

    def check(self) -> None:
        for name in self.only:
            check_choice("restoration model", name, tuple(RESTORERS))
        if not self.minutes > 0:
            raise ValueError(f"minutes must be positive, got {self.minutes}")


def run(study: RestorerStudy) -> None:
    study.check()
    world = init_distributed("cpu", threads=1)
    seconds = _seconds_per_step(study, world)
    for name in study.only:
        if not (study.runs / name / DONE).exists():
            _train(study, name, seconds[name], world)
    rows = [_read(path) for path in sorted(study.runs.glob(f"*/{DONE}"))]
    if not rows:
        raise ValueError(f"no finished run in {study.runs}; choose networks to train with --only")
    _check_same_study(rows, study)
    rows.sort(key=lambda row: -row["psnr"])
    write_rows(study.out, rows)
    curves = {row["network"]: _curve(study.runs / row["network"]) for row in rows}
    draw_curves(curves, study.out.with_suffix(".png"), "CPU minutes", "PSNR on the test images, dB")
    table = Table("network", "parameters", "steps", "PSNR, dB", "SSIM", "CPU minutes")
    for row in rows:
        figures = (f"{row['psnr']:.2f}", f"{row['ssim']:.4f}", f"{row['cpu_minutes']:.1f}")
        table.add_row(row["network"], str(row["parameters"]), str(row["steps"]), *figures)
    Console().print(table)


def _config(study: RestorerStudy, name: str) -> RestoreConfig:
    base = build(RestoreConfig, read_recipe(find_recipe(study.recipe)))
    if base.optim.epoch_steps is None:
        raise ValueError(f"the recipe {study.recipe} has no optim.epoch_steps; set it in the recipe")
    return replace(
        base,
        model=replace(base.model, name=name),
        data=replace(base.data, train=study.train, test=study.test),
        run=replace(base.run, out=study.runs / name, resume=True, threads=1),
    )


def _train(study: RestorerStudy, name: str, seconds: float, world: World) -> None:
    config = _config(study, name)
    folder = RunFolder(config.run.out)
    steps = 60 * study.minutes / seconds
    epochs = max(1, round(steps / (config.optim.epoch_steps or 1)))
    config = replace(config, optim=replace(config.optim, epochs=epochs))
    trainer, _ = train(find_spec(config.task), config, world)
    last = trainer.loop.history[-1]
    row = dict(
        network=name,
        recipe=study.recipe,
        minutes=study.minutes,
        parameters=sum(p.numel() for p in trainer.state.model.parameters()),
        steps=trainer.loop.global_step,
        batch=config.optim.batch_size,
        crop_px=config.data.crop_px,
        psnr=round(last["psnr"], 3),
        ssim=round(last["ssim"], 4),
        best_psnr=round(trainer.loop.best["psnr"], 3),
        cpu_minutes=round(last["cpu_minutes"], 1),
        scales=_scales(trainer.state.model),
        **provenance(),
    )
    write_json(folder.path / DONE, row)


def _seconds_per_step(study: RestorerStudy, world: World, rounds: int = 6) -> dict[str, float]:
    """CPU time of a training step of every network, the median of interleaved rounds; measured once per study."""
    path = study.runs / "seconds.json"
    if not path.exists():
        steps = {name: _step(_config(study, name), world) for name in dict.fromkeys((*NETWORKS, *study.only))}
        took = [{name: step() for name, step in steps.items()} for _ in range(rounds + 1)][1:]
        write_json(path, {name: statistics.median(each[name] for each in took) for name in steps})
    seconds = _read(path)
    if missing := set(study.only) - set(seconds):
        raise ValueError(f"{path} has no step time for {', '.join(sorted(missing))}; delete it, or choose another --runs")
    return seconds


def _step(config: RestoreConfig, world: World) -> Callable[[], float]:
    task = Restoration(config, world)
    model = task.build_model().train()
    optimizer = build_optimizer(model, config.optim)
    batch = next(iter(task.batches(0, 0)))

    def step() -> float:
        began = time.process_time()
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
        return time.process_time() - began

    return step


def _read(path: Path) -> dict[str, Any]:
    found = parse_json(read_bytes(path), path)
    if not isinstance(found, dict):
        raise ValueError(f"{path} is corrupt; delete it, or choose another --runs")
    return found


def _check_same_study(rows: Sequence[dict[str, Any]], study: RestorerStudy) -> None:
    """Raise unless all runs have the recipe and training time of this study."""
    for row in rows:
        if (row.get("recipe"), row.get("minutes")) != (study.recipe, study.minutes):
            made = f"{row.get('recipe')} for {row.get('minutes')} minutes"
            raise ValueError(f"{study.runs / row['network']} was trained with {made}; remove it, or choose another --runs")


def _scales(model: nn.Module) -> str:
    """Final Gaussian/Cauchy scales of each layer."""
    with torch.no_grad():
        found = [m.scales().mean(1).tolist() for m in model.modules() if isinstance(m, TailPropagation)]
    return " ".join("/".join(f"{k:.3g}" for k in pair) for pair in found)


def _curve(folder: Path) -> tuple[list[float], list[float]]:
    rows = [row for row in RunFolder(folder).read_log() if row["kind"] == "epoch" and "psnr" in row]
    return [row["cpu_minutes"] for row in rows], [row["psnr"] for row in rows]
