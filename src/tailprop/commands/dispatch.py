"""Commands whose options depend on the task of a checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tailprop.engine.exported import is_exported, read_description
from tailprop.engine.options import parse_options
from tailprop.engine.run_settings import find_task_name
from tailprop.engine.task import TaskSpec
from tailprop.tasks import DEFAULT_TASK, find_spec

__all__ = ["TaskCommand", "parse_for_task"]


@dataclass(frozen=True)
class TaskCommand:
    """A command of a task: where it is, and its options."""

    spec: TaskSpec
    reference: str
    options: Any

    def run(self) -> int | None:
        return self.spec.module(self.reference).run(self.options)


def parse_for_task(command: str, part: Literal["evaluate", "predict"], args: list[str]) -> TaskCommand:
    """Parse the options of the task of the checkpoint in the arguments; without one, those of a classifier."""
    exported = next((Path(arg) for arg in args if is_exported(arg)), None)
    if exported is not None:
        spec = find_spec(read_description(exported).task)
        if part != "predict" or spec.exported is None:
            raise ValueError(f"tailprop {command} takes no exported files; give it the run that {exported} was made from")
        reference, kind = spec.exported, spec.options(spec.predict)
    else:
        spec = find_spec(next((task for arg in args if (task := find_task_name(arg, DEFAULT_TASK)) is not None), DEFAULT_TASK))
        reference = getattr(spec, part)
        kind = spec.options(reference)
    description = f"{(kind.__doc__ or '').strip()} ({spec.title}; the checkpoint determines the task)"
    return TaskCommand(spec, reference, parse_options(kind, args, f"tailprop {command}", description))
