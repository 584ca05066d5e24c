"""The interface of a task: `Task` is what the training loop calls, `TaskSpec` tells the commands where its parts are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tailprop.engine.config import TaskConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tailprop.runtime.distributed import World

__all__ = ["Task", "TaskSpec"]


class Task(Protocol):
    """The methods that the training loop calls, on every rank."""

    config: Any  # the settings, a TaskConfig
    sampler: Any  # sampler of the training set; its .steps is the number of optimizer steps per epoch
    broken: dict[str, str]  # file name: why it could not be read

    def build_model(self, resumed: bool = False) -> nn.Module: ...  # on the CPU; if resumed, without model.init
    def batches(self, epoch: int, step: int) -> Iterable[Any]: ...  # training batches of this rank, from that step on
    def loss(self, model: nn.Module, batch: Any) -> Tensor: ...  # scalar training loss of a batch, under autocast
    def evaluate(self, model: nn.Module) -> dict[str, float]: ...  # at least the metrics of the spec, over all ranks
    def describe(self, model: nn.Module) -> dict[str, Any]: ...  # for the manifest: split_hash, parameters, macs, ...
    def data_summary(self) -> str: ...  # the dataset in one line, printed at the start
    def metadata(self) -> dict[str, str]: ...  # metadata of the exported weights
    def hub_config(
        self,
    ) -> dict[str, Any] | None: ...  # timm's config.json for the exported weights; None = timm has no use for them
    def draw(self, history: list[dict[str, float]], folder: Path) -> None: ...  # draw the figures of a finished run
    def summary(self, best: dict[str, float]) -> str: ...  # the metrics of the best epoch in one line


@dataclass(frozen=True)
class TaskSpec:
    """Where the parts of a task are, as "module:attribute" in the task's package. A part is imported on first use.

    Options of commands are dataclasses of the module `options`, and the command is the function `run` of the named module:
    options are parsed before PyTorch is imported.
    """

    package: str  # for example tailprop.tasks.classify
    title: str  # the task in a few words, for help texts
    config: str  # settings: a subclass of TaskConfig
    task: str  # training: a class that implements Task, created from the settings and the World
    load: str  # function that loads a run folder or a weights file as a Predictor
    evaluate: str  # `tailprop eval`: the module whose `run` takes the options, and their dataclass
    predict: str  # `tailprop predict`, likewise
    metrics: dict[str, str]  # name: label with unit for figures; the first metric selects the best checkpoint
    bench: str | None = None  # `tailprop bench TASK`, likewise; None = the task has no benchmark
    artifacts: tuple[str, ...] = ()  # files that the task adds to the run folder
    export: str | None = None  # `tailprop export`: function that describes what is exported; None = nothing is
    hub: str | None = None  # `tailprop push`: function of a Predictor that returns its config.json; None = it has none
    exported: str | None = None  # `tailprop predict FILE.onnx`: the module whose `run` takes the options of `predict`

    @property
    def name(self) -> str:
        """The name of the task, as in `task:` of a recipe."""
        return self.package.rpartition(".")[2]

    @property
    def metric(self) -> str:
        """The metric that selects the best checkpoint; higher is better."""
        return next(iter(self.metrics))

    def part(self, reference: str) -> Any:
        """Import a part, given as "module:attribute"."""
        module, _, attribute = reference.partition(":")
        return getattr(import_module(f"{self.package}.{module}"), attribute)

    def options(self, reference: str) -> type[Any]:
        """The options of a command, without importing its module."""
        return getattr(import_module(f"{self.package}.options"), reference.partition(":")[2])

    def module(self, reference: str) -> Any:
        """Import the module of a part."""
        return import_module(f"{self.package}.{reference.partition(':')[0]}")

    def config_type(self) -> type[TaskConfig]:
        return self.part(self.config)

    def create(self, config: TaskConfig, world: World) -> Task:
        return self.part(self.task)(config, world)
