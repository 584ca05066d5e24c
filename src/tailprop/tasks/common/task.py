"""What the tasks have in common while they train."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from tailprop.data.broken import BrokenFiles, check_batch_full
from tailprop.data.samplers import TrainSampler
from tailprop.engine.config import ModelConfig, OptimConfig, TaskConfig
from tailprop.engine.settings import setting
from tailprop.runtime.distributed import World
from tailprop.utils.text import counted, listed
from tailprop.utils.validation import check_at_least

__all__ = ["BaseTask", "LoaderConfig", "create_train_sampler", "data_summary"]


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """How any data is read."""

    on_broken: Literal["skip", "stop"] = setting("stop", free=True)
    """A file that is missing, corrupt or wrong: skip and count it, or stop."""
    workers: int = setting(2, local=True)
    """Loader processes for each training process, at most one for each core."""

    def check(self) -> None:
        check_at_least("data.workers", self.workers, 0)


def data_summary(classes: Sequence[str], counts: dict[str, int]) -> str:
    """Classes and numbers of images in a line."""
    told = ", ".join(f"{count} {split}" for split, count in counts.items())
    return f"{counted(len(classes), 'class')} ({listed(classes, 5)}); images: {told}" if classes else f"images: {told}"


C = TypeVar("C", bound=TaskConfig)


def create_train_sampler(count: int, optim: OptimConfig, seed: int, world: World) -> TrainSampler:
    """Shuffled batches of this process from so many examples."""
    return TrainSampler(count, optim.batch_size, seed, world, optim.grad_accum_steps, optim.epochs, optim.epoch_steps)


class BaseTask(Generic[C]):
    """A task for one process: its settings, what is broken in its data, and the batches of its training."""

    sampler: Any
    train_loader: Iterable[Any]

    def __init__(self, config: C, world: World, on_broken: str) -> None:
        self.config, self.world = config, world
        self.broken = BrokenFiles(on_broken, world.is_main)

    def model_config(self, resumed: bool) -> ModelConfig:
        """The settings of the model; a resumed run's weights come from its checkpoint."""
        return replace(self.config.model, init=None) if resumed else self.config.model

    def batches(self, epoch: int, step: int) -> Iterable[Any]:
        """The batches of this process in an epoch, from an optimizer step on."""
        self.sampler.begin(epoch, step)
        return self.train_loader

    def check_batch(self, batch: Any) -> None:
        """Record what of a batch could not be read, and refuse one that is short all the same."""
        self.broken.record(batch.broken)
        check_batch_full(batch, self.config.optim.batch_size)
