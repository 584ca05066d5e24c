"""Commands whose options depend on the task of a checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tailprop.engine.exported import is_exported, read_description
from tailprop.engine.options import parse_options
from tailprop.engine.run_settings import find_task_name
from tailprop.engine.shipped import check_checkpoint_name
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
        spec = find_spec(_find_task(args))
        reference = getattr(spec, part)
        kind = spec.options(reference)
    description = f"{(kind.__doc__ or '').strip()} ({spec.title}; the checkpoint determines the task)"
    return TaskCommand(spec, reference, parse_options(kind, args, f"tailprop {command}", description))


def _find_task(args: list[str]) -> str:
    """The task of the checkpoint, which mostly comes first; else of a file or folder, before the names of shipped models.

    A name after an option may be its value, as in `--out denoise`.
    """
    if args and not args[0].startswith("-"):
        check_checkpoint_name(args[0])
    for arg in (*args[:1], *sorted(args[1:], key=lambda arg: not Path(arg).exists())):
        if (task := find_task_name(arg, DEFAULT_TASK)) is not None:
            return task
    return DEFAULT_TASK
