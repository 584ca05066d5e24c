"""Training code that all tasks share."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from tailprop.data.broken import BrokenFiles, check_batch_full
from tailprop.data.samplers import TrainSampler
from tailprop.engine.config import ModelConfig, OptimConfig, TaskConfig
from tailprop.runtime.distributed import World
from tailprop.utils.text import counted, listed

__all__ = ["BaseTask", "create_train_sampler", "data_summary"]


def data_summary(classes: Sequence[str], counts: dict[str, int]) -> str:
    """Classes and numbers of images in one line."""
    sizes = ", ".join(f"{count} {split}" for split, count in counts.items())
    return f"{counted(len(classes), 'class')} ({listed(classes, 5)}); images: {sizes}" if classes else f"images: {sizes}"


C = TypeVar("C", bound=TaskConfig)


def create_train_sampler(count: int, optim: OptimConfig, seed: int, world: World) -> TrainSampler:
    """The sampler of shuffled training batches for this rank."""
    return TrainSampler(count, optim.batch_size, seed, world, optim.grad_accum_steps, optim.epochs, optim.epoch_steps)


class BaseTask(Generic[C]):
    """Base of every task, on one rank: settings, broken files and training batches."""

    sampler: Any
    train_loader: Iterable[Any]

    def __init__(self, config: C, world: World, on_broken: str) -> None:
        self.config, self.world = config, world
        self.broken = BrokenFiles(on_broken, world.is_main)

    def model_config(self, resumed: bool) -> ModelConfig:
        """The settings of the model; without `init` for a resumed run, whose weights come from its checkpoint."""
        return replace(self.config.model, init=None) if resumed else self.config.model

    def batches(self, epoch: int, step: int) -> Iterable[Any]:
        """The training batches of this rank in an epoch, from an optimizer step on."""
        self.sampler.begin(epoch, step)
        return self.train_loader

    def hub_config(self) -> dict[str, Any] | None:
        """timm's config.json for the exported weights; None where they are no network of timm."""
        return None

    def check_batch(self, batch: Any) -> None:
        """Record the broken files of a batch; raise if the batch is not full."""
        self.broken.record(batch.broken)
        check_batch_full(batch, self.config.optim.batch_size)
