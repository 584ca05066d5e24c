"""The tasks. A new one is a folder with a `SPEC` and an entry in `TASKS`."""

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tailprop.engine.run_settings import find_task_name
from tailprop.engine.task import TaskSpec
from tailprop.utils.extras import explain_missing_extras
from tailprop.utils.text import did_you_mean

__all__ = ["DEFAULT_TASK", "TASKS", "find_spec", "load"]

DEFAULT_TASK: Final = "classify"  # of settings that name no task, and of checkpoints of other programs
TASKS: Final = ("classify", "detect", "segment", "restore", "reach")


def find_spec(name: Any) -> TaskSpec:
    """The spec of a task by its name."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; {did_you_mean(str(name), TASKS)}")
    return import_module(f"{__name__}.{name}").SPEC


def load(path: str | Path, **options: Any) -> Any:
    """Load a trained model of any task: `load(path).predict(images)`.

    Args:
        path: A run folder, a file of exported weights, or the name of a shipped model; for a classifier also the name of a
            pretrained timm model.
        options: Arguments of the task's loader, such as `size_px` of a classifier.

    Returns:
        A `Predictor` with `predict(images)`, where images are a path, a PIL image, an array, a tensor or a list of them; the
        class `names`; the `settings` of its run; and `model`, the network in evaluation mode.
    """
    spec = find_spec(find_task_name(path, DEFAULT_TASK) or DEFAULT_TASK)
    with explain_missing_extras():
        return spec.part(spec.load)(path, **options)
