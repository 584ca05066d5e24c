"""What is trained: each task has settings, a model, data, a loss and a metric. The loop knows it by `train.Task` only."""

from importlib import import_module
from typing import Any, Final

__all__ = ["TASKS", "find_task"]

# task of a recipe: (module, dataclass of its settings, its class)
TASKS: Final = {
    "classify": ("tailprop.tasks.classify.task", "ClassifyConfig", "Classification"),
    "detect": ("tailprop.tasks.detect.task", "DetectConfig", "Detection"),
    "segment": ("tailprop.tasks.segment.task", "SegmentConfig", "Segmentation"),
    "restore": ("tailprop.tasks.restore.task", "RestoreConfig", "Restoration"),
}


def find_task(name: str) -> tuple[Any, Any]:
    """The settings and the class of a task; imported only when asked for."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; there are {', '.join(TASKS)}")
    module, config, task = TASKS[name]
    found = import_module(module)
    return getattr(found, config), getattr(found, task)
