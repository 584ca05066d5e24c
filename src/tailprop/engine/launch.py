"""Run a training from its settings: train, draw figures, print a summary."""

from pathlib import Path
from typing import Any

from rich.text import Text

from tailprop.engine.config import TaskConfig
from tailprop.engine.task import Task, TaskSpec
from tailprop.engine.trainer import Trainer
from tailprop.runtime.distributed import World
from tailprop.utils.terminal import Console
from tailprop.utils.text import printable, say

__all__ = ["train"]


def train(spec: TaskSpec, config: TaskConfig, world: World, summary: bool = True) -> tuple[Trainer, Any]:
    """Train with these settings; returns the trainer, which has the history, and the task."""
    task = spec.create(config, world)
    trainer = Trainer(spec, task, config, world)
    history = trainer.run()
    if world.is_main:
        _draw(task, history, trainer.folder.path)
        if summary:
            _print_summary(trainer)
    return trainer, task


def _draw(task: Task, history: list[dict[str, float]], folder: Path) -> None:
    try:
        task.draw(history, folder)
    except Exception as error:  # a finished run must not fail because of a figure
        say(f"tailprop: could not draw the figures ({type(error).__name__}: {error})", error=True)


def _print_summary(trainer: Trainer) -> None:
    best, folder, minutes = trainer.loop.best, trainer.folder, trainer.loop.seconds / 60
    if best:
        result = (
            Text("best: ").append(printable(trainer.task.summary(best)), "bold").append(f" after epoch {best['epoch']:.4g}")
        )
    else:
        result = Text(f"no epoch has a finite {trainer.spec.metric}, so no weights were exported")
    Console().print(result.append(f"; {minutes:.1f} minutes of training"), soft_wrap=True)
    made = [folder.weights, *folder.artifacts]
    say(f"written: {', '.join(str(path) for path in made if path.exists())}")
