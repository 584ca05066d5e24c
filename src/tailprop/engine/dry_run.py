"""`--dry-run`: what a training would do, and how long it would take. Nothing is trained or written."""

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import yaml

from tailprop.engine.config import TaskConfig
from tailprop.engine.optim import build_schedule
from tailprop.engine.run_folder import RunFolder
from tailprop.engine.settings import to_dict
from tailprop.engine.task import Task, TaskSpec
from tailprop.engine.train_state import TrainState
from tailprop.runtime.distributed import World
from tailprop.runtime.memory import peak_bytes
from tailprop.utils.durations import duration_text
from tailprop.utils.text import counted, say

__all__ = ["Timed", "dry_run", "time_steps"]

_STEPS = 3


@dataclass(frozen=True)
class Timed:
    """A few training steps after a first one."""

    seconds: float  # of a step
    memory: int  # peak, in bytes: of the GPU, or of this process
    trained: int  # numbers that are trained


def time_steps(task: Task, config: TaskConfig, world: World, model: torch.nn.Module, steps: int = _STEPS) -> Timed:
    """Time training steps of a network, which are not kept."""
    state = TrainState(model, config.optim, config.run, world, config.model.freeze)
    lr = build_schedule(config.optim, task.sampler.steps, world.size).at(0)
    batches = iter(task.batches(0, 0))
    took = []
    for number in range(min(1 + steps, task.sampler.steps)):
        began = time.perf_counter()
        float(state.step(task, list(islice(batches, config.optim.grad_accum_steps)), lr, number + 1))
        took.append(time.perf_counter() - began)
    on_gpu = world.device.type == "cuda"
    memory = torch.cuda.max_memory_allocated(world.device) if on_gpu else peak_bytes()
    trained = sum(p.numel() for p in state.model.parameters() if p.requires_grad)
    return Timed(statistics.median(took[1:] or took), memory, trained)


def dry_run(spec: TaskSpec, config: TaskConfig, world: World) -> None:
    """Print settings, data, network, memory and time of a training."""
    _print(world, yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True).splitlines())
    task = spec.create(config, world)
    torch.manual_seed(config.run.seed)
    model = task.build_model()
    about = task.describe(model)
    timed = time_steps(task, config, world, model)
    _print(world, ["", *_summary(config, task, about, timed, world), *_about_folder(config)])


def _summary(config: TaskConfig, task: Task, about: dict[str, Any], timed: Timed, world: World) -> Iterable[str]:
    optim, per_epoch = config.optim, task.sampler.steps
    steps = optim.epochs * per_epoch
    batch = world.size * optim.batch_size * optim.grad_accum_steps
    where = "of the GPU" if world.device.type == "cuda" else "of this process"
    total = min(steps * timed.seconds, config.run.budget_seconds)
    yield f"data     {task.data_summary()}"
    trained = "" if timed.trained == about["parameters"] else f", of which {timed.trained / 1e6:.2f} M are trained"
    macs = f"{about['macs'] / 1e9:.2f} GMACs"
    yield f"network  {config.model.name}: {about['parameters'] / 1e6:.2f} M parameters{trained}; {macs}"
    yield f"steps    {optim.epochs} epochs of {counted(per_epoch, 'step')}, {steps} in all, {batch} images in each"
    yield f"memory   {timed.memory / 1e9:.1f} GB, the peak {where}"
    rate = f"{timed.seconds:.3g} s a step, {batch / timed.seconds:.0f} images a second"
    yield f"time     about {duration_text(total)} of training ({rate}, measured now), and the evaluations"


def _about_folder(config: TaskConfig) -> Iterable[str]:
    folder = RunFolder(config.run.out)
    try:
        folder.check(config)
    except ValueError as error:
        yield f"folder   cannot be used: {error}"
    else:
        yield f"folder   {config.run.out}"
    finally:
        folder.release()
    yield "nothing was trained or written"


def _print(world: World, lines: Iterable[str]) -> None:
    for line in lines if world.is_main else ():
        say(line)
