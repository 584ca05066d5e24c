"""`--dry-run`: the plan of a study and the time it will take."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tailprop.engine.dry_run import time_steps
from tailprop.runtime.distributed import init_distributed
from tailprop.studies.ablate.rows import Row
from tailprop.studies.ablate.runner import Machine
from tailprop.studies.ablate.study import Run
from tailprop.tasks import find_spec
from tailprop.utils.terminal import Console, Table
from tailprop.utils.text import say

__all__ = ["print_plan"]

_STEPS = 3


def print_plan(runs: Sequence[Run], done: dict[str, Row], machine: Machine) -> None:
    """Print runs, done and to do by recipe and variant, and the estimated time."""
    table = Table("recipe", "variant", "runs", "done", "to do", "minutes each")
    sources: dict[str, str] = {}
    total = 0.0
    for recipe in dict.fromkeys(run.recipe for run in runs):
        here = [run for run in runs if run.recipe == recipe]
        missing = [run for run in here if run.name not in done]
        timed, sources[recipe] = _seconds(here, done) if missing else ({}, "")
        for variant in dict.fromkeys(run.variant for run in here):
            mine = [run for run in here if run.variant == variant]
            todo = sum(run.name not in done for run in mine)
            total += todo * timed.get(variant, 0.0)
            each = f"{timed[variant] / 60:.2f}" if todo else ""
            table.add_row(recipe, variant, str(len(mine)), str(len(mine) - todo), str(todo), each)
    Console().print(table)
    todo = sum(run.name not in done for run in runs)
    say(f"{len(runs)} runs, {len(runs) - todo} done, {todo} to do, {machine}")
    if todo:
        say(f"about {total / machine.jobs / 60:.1f} minutes of training, without evaluation and start-up; estimated from:")
        for recipe, source in sources.items():
            say(f"  {recipe}: {source or 'nothing to do'}")


def _seconds(runs: Sequence[Run], done: dict[str, Row]) -> tuple[dict[str, float], str]:
    """Seconds of a run of each variant, and how they were found."""
    known: dict[str, list[float]] = {}
    for run in runs:
        if run.name in done:
            known.setdefault(run.variant, []).append(float(done[run.name]["seconds"]))
    means = {variant: statistics.fmean(seconds) for variant, seconds in known.items()}
    if means:
        other, source = statistics.fmean(means.values()), "the finished runs of the variant, or of the recipe if it has none"
    else:
        other, source = _timed(runs[0]), f"{_STEPS} training steps of {runs[0].variant}, timed alone"
    return {run.variant: means.get(run.variant, other) for run in runs}, source


def _timed(run: Run) -> float:
    """Seconds of a run, from a few of its training steps after a first one; nothing is kept."""
    with TemporaryDirectory() as folder:
        config = replace(run.config, run=replace(run.config.run, out=Path(folder)))
        world = init_distributed(config.run.device, config.run.threads)
        task = find_spec(config.task).create(config, world)
        timed = time_steps(task, config, world, task.build_model(resumed=True), _STEPS)
    return timed.seconds * task.sampler.steps * config.optim.epochs
