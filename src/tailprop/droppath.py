"""Stochastic depth that does not compute what it would throw away.

Dropping a residual branch for a sample and computing it all the same wastes its share of the step: a quarter of Base, whose
rates average 0.25. Samples do not depend on each other, so the branch sees the kept samples only. Outcome and gradients are
those of the usual form, x + mask * branch(x) / keep.
"""

from collections.abc import Callable

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from tailprop.slicing import is_captured, is_hooked

__all__ = ["StochasticDepth"]


class StochasticDepth(nn.Module):
    """x + branch(x), the branch left out for each sample with probability `rate` while training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.usual = DropPath(rate) if rate > 0 else nn.Identity()

    def forward(self, x: Tensor, branch: Callable[[Tensor], Tensor], module: nn.Module) -> Tensor:
        """`module` is where the branch comes from: hooks inside it see whole batches."""
        if is_captured(x) or not self.training or self.rate == 0 or is_hooked(module):
            return x + self.usual(branch(x))
        return self._skip(x, branch)

    def _skip(self, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        keep = 1 - self.rate
        kept = (torch.rand(len(x), device="cpu") < keep).nonzero().flatten()  # on the CPU: a GPU would have to wait for it
        if len(kept) == len(x):
            return torch.add(x, branch(x), alpha=1 / keep)
        weight = 1 / keep
        if len(kept) == 0:  # every parameter gets a gradient all the same, or distributed training waits for it
            kept, weight = kept.new_zeros(1), 0.0
        kept = kept.to(x.device, non_blocking=True)
        return x.index_add(0, kept, branch(x[kept]).to(x.dtype), alpha=weight)
