"""Data loaders with reproducible batches.

The order of an epoch is a function of seed and epoch, and every example is augmented by a generator seeded with (seed, epoch,
index). So a run that stops in the middle of an epoch resumes with exactly the batches it would have seen, and the batches
depend neither on the number of workers nor, for the same global batch, on the number of processes.
"""

import atexit
import os
import signal
import sys
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from tailprop.data.broken import Broken
from tailprop.data.samplers import SampleKey
from tailprop.runtime.allocator import keep_some_freed_memory
from tailprop.runtime.rng import mix_seeds, preserve_rng_state

__all__ = ["KeyedDataset", "available_cores", "create_loader", "split_broken", "to_device"]

T = TypeVar("T")
_REPLACEMENTS = 16  # replacements tried for a broken example


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def create_loader(
    dataset: Dataset[Any],
    sampler: Sampler[list[SampleKey]],
    collate: Callable[[Sequence[Any]], Any],
    workers: int,
    device: torch.device,
) -> DataLoader[Any]:
    """A DataLoader with `workers` processes, but at most one for each core."""
    workers = min(workers, available_cores())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # torch counts cores differently
        loader = DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=collate,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # starting an epoch must not draw from the global generator
            worker_init_fn=partial(_init_worker, low_priority=device.type == "cpu"),
            # forked workers share the dataset's memory; other start methods would pickle it
            multiprocessing_context="fork" if workers > 0 and sys.platform == "linux" else None,
        )
    _LOADERS.add(loader)
    return loader


_LOADERS: "weakref.WeakSet[DataLoader[Any]]" = weakref.WeakSet()


@atexit.register
def _shut_down() -> None:
    """End the workers before Python waits for them at exit: they ignore SIGTERM, see `_init_worker`."""
    for loader in list(_LOADERS):
        iterator = getattr(loader, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


def _init_worker(worker: int, low_priority: bool) -> None:  # noqa: ARG001 - torch passes the worker's number
    torch.set_num_threads(1)
    keep_some_freed_memory()
    if low_priority and hasattr(os, "nice"):
        # Threads that share a matrix product wait for the slowest one, so a worker that preempts one of them stalls all.
        # Single-threaded phases leave enough time for the workers.
        os.nice(10)
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # sent to the whole process group: the main process saves a checkpoint, then ends the workers
        signal.signal(number, signal.SIG_IGN)


class KeyedDataset(Dataset[Any], ABC):
    """A dataset indexed by batches of keys, so that the state of the generators is saved once for each batch.

    A subclass reads one example in `read_example`. An unreadable one is returned as `Broken`, in training (`replace_broken`)
    followed by a random replacement: neighbours are often broken together, like the rows of a corrupt page.
    """

    replace_broken = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read_example(self, index: int, key: SampleKey) -> Any | Broken: ...

    def __getitem__(self, key: SampleKey) -> list[Any | Broken]:
        found = [self.read_example(key.index, key)]
        while self.replace_broken and isinstance(found[-1], Broken) and len(found) <= _REPLACEMENTS:
            found.append(self.read_example(mix_seeds(key.seed, len(found), 4) % len(self), key))
        return found

    def __getitems__(self, keys: Sequence[SampleKey]) -> list[Any]:  # called by DataLoader
        with preserve_rng_state():
            return [self[key] for key in keys]


def split_broken(examples: Iterable[Iterable[T | Broken]]) -> tuple[list[T], list[Broken]]:
    """The examples of a batch, and the broken ones."""
    found = [item for example in examples for item in example]
    return [item for item in found if not isinstance(item, Broken)], [item for item in found if isinstance(item, Broken)]


def to_device(value: Tensor, device: torch.device) -> Tensor:
    return value.to(device, non_blocking=device.type == "cuda")
