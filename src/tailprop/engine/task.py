"""What the engine and the commands know of a task: how it is trained (`Task`), and a description of its parts (`TaskSpec`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from tailprop.engine.config import TaskConfig
from tailprop.runtime.distributed import World

__all__ = ["Task", "TaskSpec"]


class Task(Protocol):
    """What the training loop asks of a task, in every process."""

    sampler: Any  # .steps: optimizer steps in an epoch
    broken: dict[str, str]  # files that could not be read, with the reason

    def build_model(self, resumed: bool = False) -> nn.Module: ...  # a resumed run's weights come from its checkpoint
    def batches(self, epoch: int, step: int) -> Iterable[Any]: ...  # of this process in an epoch, from an optimizer step on
    def loss(self, model: nn.Module, batch: Any) -> Tensor: ...
    def evaluate(self, model: nn.Module) -> dict[str, float]: ...  # the numbers named in the spec's metrics, and others
    def describe(self, model: nn.Module) -> dict[str, Any]: ...  # for the manifest: examples, split_hash, parameters, macs, ...
    def data_summary(self) -> str: ...  # the data in a line
    def metadata(self) -> dict[str, str]: ...  # what exported weights say of themselves
    def draw(self, history: list[dict[str, float]], folder: Path) -> None: ...  # the figures of a finished run
    def summary(self, best: dict[str, float]) -> str: ...  # its numbers in a line


@dataclass(frozen=True)
class TaskSpec:
    """One description of a task. Parts are named "module:attribute" inside the task's package and imported when asked for.

    `evaluate`, `predict` and `bench` name a dataclass of options; the function `run` of the same module takes it.
    """

    package: str  # for example tailprop.tasks.classify
    title: str  # what it is about, in a sentence
    config: str  # dataclass of its settings, a TaskConfig
    task: str  # class that is trained, a Task made of settings and World
    load: str  # function: run folder or weights to a Predictor
    evaluate: str
    predict: str
    metrics: dict[str, str]  # name: label with unit, as drawn and printed; the first decides which checkpoint is best
    bench: str | None = None
    artifacts: tuple[str, ...] = ()  # files it leaves in a run folder beside the engine's own

    @property
    def name(self) -> str:
        """As in `task:` of a recipe."""
        return self.package.rpartition(".")[2]

    @property
    def metric(self) -> str:
        """The number that decides which checkpoint is best; higher is better."""
        return next(iter(self.metrics))

    def part(self, reference: str) -> Any:
        """An attribute of one of the task's modules."""
        module, _, attribute = reference.partition(":")
        return getattr(import_module(f"{self.package}.{module}"), attribute)

    def module(self, reference: str) -> Any:
        """The module an attribute is in."""
        return import_module(f"{self.package}.{reference.partition(':')[0]}")

    def config_type(self) -> type[TaskConfig]:
        return self.part(self.config)

    def create(self, config: TaskConfig, world: World) -> Task:
        return self.part(self.task)(config, world)
