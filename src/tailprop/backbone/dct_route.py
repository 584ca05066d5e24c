"""How an axis is transformed: the rule, fitted to a table that `tailprop bench transform` measures.

A transform of n points takes, for every value, n multiply-adds as a product, M + 2h as a split into M pieces of h points, and
some that hardly depend on n as an FFT. Beside them each has a fixed cost, for memory and for short rows. The rule counts
multiply-adds and adds the fixed cost in the same unit, so that a machine is described by two numbers for inference and two for
training.
"""

from functools import lru_cache
from typing import Final, NamedTuple

import torch

from .dct_split import FFT, PRODUCT, multiply_adds, splits_of

__all__ = ["COSTS", "Costs", "choose_pieces"]


class Costs(NamedTuple):
    """Costs for each value in multiply-adds of a large matrix product."""

    fold: float  # of a split, beside its products
    fft: float  # of an FFT, at any length


# results/transform_cpu.csv. Nothing has been measured on CUDA: the numbers only keep the product for the maps of a backbone.
COSTS: Final = {
    ("cpu", False): Costs(fold=12, fft=250),
    ("cpu", True): Costs(fold=12, fft=250),
    ("cuda", False): Costs(fold=128, fft=2048),
    ("cuda", True): Costs(fold=128, fft=2048),
}


def choose_pieces(n: int, device: torch.device, training: bool) -> int:
    """The number of pieces that is fastest for an axis of n points, `PRODUCT` or `FFT`."""
    costs = COSTS.get((device.type, training), COSTS["cuda", training])
    return _cheapest(n, costs)


@lru_cache(4096)
def _cheapest(n: int, costs: Costs) -> int:
    ways = {PRODUCT: float(n), FFT: costs.fft}
    ways |= {pieces: multiply_adds(n, pieces) + costs.fold for pieces in splits_of(n)}
    return min(ways, key=ways.__getitem__)
