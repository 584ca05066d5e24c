"""How an axis is transformed: the rule, fitted to a table that `tailprop bench transform` measures.

A transform of n points takes, for every value, n multiply-adds as a product, M + 2h as a split into M pieces of h points, and
some that hardly depend on n as an FFT. Beside them a split has a fixed cost, for one more pass over the memory. The rule counts
both in multiply-adds of a large matrix product, so that two numbers describe a device in inference, and two in training.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final, NamedTuple

import torch

from .dct_split import FFT, PRODUCT, multiply_adds, splits_of

__all__ = ["COSTS", "Costs", "best_split", "choose_pieces", "forced_pieces"]


class Costs(NamedTuple):
    """Costs for each value in multiply-adds of a large matrix product."""

    fold: float  # of a split, beside its products
    fft: float  # of an FFT, at the lengths that hardly split: those with a large prime factor


# By device, and whether in training. results/transform_cpu.csv is the table for a CPU. Nothing has been measured on CUDA: there
# the numbers only keep the product for the maps of a backbone, until someone runs the command on a GPU.
COSTS: Final = {
    ("cpu", False): Costs(fold=28, fft=484),
    ("cpu", True): Costs(fold=20, fft=453),
    ("cuda", False): Costs(fold=128, fft=2048),
    ("cuda", True): Costs(fold=128, fft=2048),
}
_forced: Callable[[int], int] | None = None


def choose_pieces(n: int, device: torch.device, training: bool) -> int:
    """The number of pieces that is fastest for an axis of n points, `PRODUCT` or `FFT`."""
    if _forced is not None:
        return _forced(n)
    return _cheapest(n, COSTS.get((device.type, training), COSTS["cuda", training]))


def best_split(n: int) -> int:
    """The split with the fewest multiply-adds; the product where there is none."""
    return min(splits_of(n), key=lambda pieces: multiply_adds(n, pieces), default=PRODUCT)


@contextmanager
def forced_pieces(choose: Callable[[int], int]) -> Iterator[None]:
    """Transform every axis in the way that a function of its length says: for measurements and tests."""
    global _forced
    before, _forced = _forced, choose
    try:
        yield
    finally:
        _forced = before


@lru_cache(4096)
def _cheapest(n: int, costs: Costs) -> int:
    split = best_split(n)
    ways = {FFT: costs.fft, split: multiply_adds(n, split) + costs.fold, PRODUCT: float(n)}
    return min(ways, key=ways.__getitem__)
