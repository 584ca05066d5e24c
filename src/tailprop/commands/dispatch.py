"""Commands whose options depend on the task of a checkpoint."""

from dataclasses import dataclass
from typing import Any, Literal

from tailprop.engine.options import parse_options
from tailprop.engine.run_settings import DEFAULT_TASK, find_task_name
from tailprop.tasks import find_spec

__all__ = ["TaskCommand", "parse_for_task"]


@dataclass(frozen=True)
class TaskCommand:
    """The module of a task that runs a command, and its options."""

    module: Any
    options: Any

    def run(self) -> int | None:
        return self.module.run(self.options)


def parse_for_task(command: str, part: Literal["evaluate", "predict"], args: list[str]) -> TaskCommand:
    """Options by the task of the checkpoint among the arguments; where none says, those of a classifier."""
    spec = find_spec(next((task for task in map(find_task_name, args) if task is not None), DEFAULT_TASK))
    reference = getattr(spec, part)
    description = f"{(spec.part(reference).__doc__ or '').strip()} ({spec.title}; the task is that of the checkpoint)"
    return TaskCommand(spec.module(reference), parse_options(spec.part(reference), args, f"tailprop {command}", description))
