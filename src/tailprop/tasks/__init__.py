"""The tasks: what the backbones are trained for. A new one is a folder with a `SPEC` and a row here."""

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tailprop.engine.run_settings import DEFAULT_TASK, find_task_name
from tailprop.engine.task import TaskSpec
from tailprop.utils.extras import explain_missing_extras
from tailprop.utils.text import did_you_mean

__all__ = ["TASKS", "find_spec", "load"]

TASKS: Final = ("classify", "detect", "segment", "restore")


def find_spec(name: Any) -> TaskSpec:
    """The description of a task by its name."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; {did_you_mean(str(name), TASKS)}")
    return import_module(f"{__name__}.{name}").SPEC


def load(path: str | Path, **options: Any) -> Any:
    """A trained model of any task, ready to answer: `load(path).predict(images)`.

    Args:
        path: A run folder or a file of exported weights; for a classifier also the name of a pretrained timm model.
        options: What the task's own loader takes, such as `size_px` of a classifier.

    Returns:
        An object with `predict(images)`, where images are a path, a PIL image, an array, a tensor or a list of them; `names`,
        what it tells apart; `settings`, those of its run; and `model`, the network in evaluation mode.
    """
    spec = find_spec(find_task_name(path) or DEFAULT_TASK)
    with explain_missing_extras():
        return spec.part(spec.load)(path, **options)
