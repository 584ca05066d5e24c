"""Commands whose options depend on the task of a checkpoint."""

from dataclasses import dataclass
from typing import Any, Literal

from tailprop.engine.options import parse_options
from tailprop.engine.run_settings import find_task_name
from tailprop.tasks import DEFAULT_TASK, find_spec

__all__ = ["TaskCommand", "parse_for_task"]


@dataclass(frozen=True)
class TaskCommand:
    """A command of a task: its module and options."""

    module: Any
    options: Any

    def run(self) -> int | None:
        return self.module.run(self.options)


def parse_for_task(command: str, part: Literal["evaluate", "predict"], args: list[str]) -> TaskCommand:
    """Parse the options of the task of the checkpoint in the arguments; without one, those of a classifier."""
    spec = find_spec(next((task for arg in args if (task := find_task_name(arg, DEFAULT_TASK)) is not None), DEFAULT_TASK))
    reference = getattr(spec, part)
    description = f"{(spec.part(reference).__doc__ or '').strip()} ({spec.title}; the checkpoint determines the task)"
    return TaskCommand(spec.module(reference), parse_options(spec.part(reference), args, f"tailprop {command}", description))
