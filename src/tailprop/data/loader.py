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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from tailprop.data.samplers import Key
from tailprop.runtime.allocator import keep_some_freed_memory
from tailprop.runtime.rng import generators_kept

__all__ = ["Examples", "make_loader", "to_device"]


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
