"""From examples to batches, the same ones whatever happens.

The order of an epoch is a function of seed and epoch, and every example is augmented by a generator seeded with (seed, epoch,
index). So a run that stops in the middle of an epoch goes on with exactly the batches it would have seen, and neither the
number of workers nor, for the same global batch, the number of processes changes what is learned from.
"""

import atexit
import os
import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from tailprop.allocator import keep_some_freed_memory
from tailprop.distributed import World
from tailprop.generators import generators_kept, mix

__all__ = [
    "Broken",
    "Damage",
    "EvalOrder",
    "Examples",
    "Key",
    "TrainOrder",
    "make_loader",
    "report",
    "require_full",
    "to_device",
]

_NAMED = 20  # broken things named one by one


@dataclass(frozen=True)
class Key:
    """Asks a dataset for an example: its index, the seed of its augmentation, and how far the training is (0 to 1)."""

    index: int
    seed: int
    progress: float = 1.0


@dataclass(frozen=True)
class Broken:
    """An example that cannot be read. Workers hand it on as data: an exception would arrive with a foreign traceback."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def report(broken: Sequence[Broken]) -> None:
    """Name what is left out on standard error; of very many, the first."""
    with suppress(OSError):  # nobody listens any more, which is no reason to stop
        for item in broken[:_NAMED]:
            print(f"left out, {item}", file=sys.stderr)
        if len(broken) > _NAMED:
            print(f"left out, {len(broken) - _NAMED} more", file=sys.stderr)


class Damage(dict[str, str]):
    """What is broken so far, with the reason: nothing is named twice, and at the first it stops if so configured."""

    def __init__(self, on_broken: str, is_first: bool = True) -> None:
        super().__init__()
        self.on_broken, self.is_first = on_broken, is_first

    def note(self, found: Sequence[Broken], shared: bool = False) -> None:
        """Add what was found. What every process has found (`shared`) is named by the first."""
        if found and self.on_broken == "stop":
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise ValueError(f"{found[0]}{more}; mend or remove it, or go on without it (--data.on-broken skip)")
        new = {item.name: item for item in found if item.name not in self}
        if self.is_first or not shared:
            report(list(new.values()))
        self.update({name: item.reason for name, item in new.items()})


def require_full(batch: Any, size: int) -> None:
    """Broken examples are replaced by others; a batch that is still short has too many of them."""
    if len(batch) < size:
        raise ValueError(f"too many broken pictures in a row, the last {batch.broken[-1]}; mend or remove them")


class TrainOrder(Sampler[list[Key]]):
    """Shuffled batches of one process: global batch k is a piece of a permutation, and each process takes its part of it.

    An epoch is one pass over the examples, without the last, incomplete global batch. With `epoch_steps` it is that many
    steps, and one permutation follows upon the other without regard to where epochs begin.
    """

    def __init__(
        self,
        count: int,
        batch: int,
        seed: int,
        world: World,
        accumulate: int = 1,
        epochs: int = 1,
        epoch_steps: int | None = None,
    ) -> None:
        super().__init__()
        self.count, self.batch, self.seed, self.world, self.accumulate = count, batch, seed, world, accumulate
        self.epochs, self.epoch_steps = epochs, epoch_steps
        self.epoch = self.start = 0
        if self.steps == 0:
            raise ValueError(
                f"a global batch of {batch * accumulate * world.size} is more than the {count} examples there are; "
                "lower --optim.batch"
            )

    @property
    def steps(self) -> int:
        """Optimizer steps in an epoch."""
        return self.epoch_steps or self.count // (self.batch * self.accumulate * self.world.size)

    def begin(self, epoch: int, step: int = 0) -> None:
        """Set the epoch, and the optimizer step in it, that the next pass starts from."""
        self.epoch, self.start = epoch, step

    def __len__(self) -> int:
        return (self.steps - self.start) * self.accumulate

    def __iter__(self) -> Iterator[list[Key]]:
        whole = self.batch * self.world.size
        began = self.epoch * self.steps * self.accumulate * whole if self.epoch_steps else self.epoch * self.count
        for k in range(self.start * self.accumulate, self.steps * self.accumulate):
            first = began + k * whole + self.world.rank * self.batch
            yield [self._key(place) for place in range(first, first + self.batch)]

    def _key(self, place: int) -> Key:
        """The example at a place of the endless row of permutations."""
        turn = place // self.count
        index = _permutation(self.count, mix(self.seed, turn))[place % self.count]
        return Key(index, mix(self.seed, turn, index), self.epoch / self.epochs)


@lru_cache(maxsize=2)
def _permutation(count: int, seed: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


class EvalOrder(Sampler[list[Key]]):
    """Every example once over all processes, in order: no example is repeated to even out the shards."""

    def __init__(self, count: int, batch: int, world: World) -> None:
        super().__init__()
        self.indices = range(world.rank, count, world.size)
        self.batch = batch

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch)

    def __iter__(self) -> Iterator[list[Key]]:
        for first in range(0, len(self.indices), self.batch):
            yield [Key(i, i) for i in self.indices[first : first + self.batch]]


def make_loader(
    dataset: Dataset[Any],
    order: Sampler[list[Key]],
    collate: Callable[[Sequence[Any]], Any],
    workers: int,
    device: torch.device,
) -> DataLoader[Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more processes than cores: the user's choice
        loader = DataLoader(
            dataset,
            batch_sampler=order,
            collate_fn=collate,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # its own, or starting an epoch would draw from the generator of the weights
            worker_init_fn=partial(_begin_worker, polite=device.type == "cpu"),
            # forked workers share the sources' memory; anything else would pickle them
            multiprocessing_context="fork" if workers > 0 and sys.platform == "linux" else None,
        )
    _LOADERS.add(loader)
    return loader


_LOADERS: "weakref.WeakSet[DataLoader[Any]]" = weakref.WeakSet()


@atexit.register
def _shut_down() -> None:
    """End the workers before Python waits for them: they ignore the signals that would, see `_begin_worker`."""
    for loader in list(_LOADERS):
        iterator = getattr(loader, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


def _begin_worker(worker: int, polite: bool) -> None:  # noqa: ARG001 - torch passes the worker's number
    torch.set_num_threads(1)
    keep_some_freed_memory()
    if polite and hasattr(os, "nice"):
        # Threads that share a matrix product wait for the slowest: a worker that pushes one aside stalls them all. It finds
        # time enough where only one of them has something to do.
        os.nice(10)
    for number in (signal.SIGTERM, signal.SIGINT):  # sent to the whole group: the main process saves, then ends us
        signal.signal(number, signal.SIG_IGN)


class Examples(Dataset[Any]):
    """A dataset asked for whole batches of keys, so that generators are kept once for each batch."""

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:  # looked for by the loader
        with generators_kept():
            return [self[key] for key in keys]


def to_device(value: Tensor, device: torch.device) -> Tensor:
    return value.to(device, non_blocking=device.type == "cuda")
