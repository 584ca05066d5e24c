"""Training code that all tasks share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, TypeVar

from tailprop.data.broken import BrokenFiles, check_batch_full
from tailprop.data.samplers import TrainSampler
from tailprop.engine.config import ModelConfig, OptimConfig, TaskConfig
from tailprop.engine.settings import setting
from tailprop.runtime.distributed import World
from tailprop.utils.text import counted, listed
from tailprop.utils.validation import check_between

__all__ = ["BaseTask", "LoaderConfig", "create_train_sampler", "data_summary"]

_MOST_WORKERS: Final = 1024  # more is a mistake, though only one per core is started


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Settings of the data loader."""

    on_broken: Literal["skip", "stop"] = setting("stop", free=True)
    """If a file is missing, corrupt or invalid: skip and count it, or stop."""
    workers: int = setting(2, local=True)
    """Loader processes per training process, at most one per core."""

    def check(self) -> None:
        check_between("data.workers", self.workers, 0, _MOST_WORKERS)


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

    def check_batch(self, batch: Any) -> None:
        """Record the broken files of a batch; raise if the batch is not full."""
        self.broken.record(batch.broken)
        check_batch_full(batch, self.config.optim.batch_size)
