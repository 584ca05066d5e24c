"""Networks that predict gates and orders from a map, and the mixing weights of their logits.

Shapes: B batch, H height, W width, C channels, K orders in the mix.
"""

from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from .stable import at_least_float32

__all__ = ["PooledMLP", "PositionMLP", "mixing_weights"]

torch.fx.wrap("at_least_float32")  # a leaf function for symbolic tracing, as in `operator`


class PooledMLP(nn.Module):
    """MLP(GAP(X)) of Eq. (8): channels averaged over space, C -> hidden -> `outputs` values for each channel."""

    def __init__(self, dim: int, hidden: int, outputs: int, **dd: Any) -> None:
        super().__init__()
        self.outputs, self.dim = outputs, dim
        self.fc1 = nn.Linear(dim, hidden, **dd)
        self.fc2 = nn.Linear(hidden, outputs * dim, **dd)

    def reset_parameters(self) -> None:
        for fc in (self.fc1, self.fc2):
            trunc_normal_(fc.weight, std=0.02)
            nn.init.zeros_(fc.bias)

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, outputs, C)
        return self.fc2(F.gelu(self.fc1(x.flatten(1, -2).mean(1)))).unflatten(1, (self.outputs, self.dim))


class PositionMLP(PooledMLP):
    """The same MLP at every position, without the average: 1x1 convolutions."""

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, outputs, H, W, C)
        return self.fc2(F.gelu(self.fc1(x))).unflatten(-1, (self.outputs, self.dim)).movedim(-2, 1)


def mixing_weights(logits: Tensor, dim: int, num_orders: int) -> Tensor:
    """Softmax over K orders of K - 1 logits, the last being 0: for two orders exactly sigmoid and its complement."""
    logits = at_least_float32(logits)
    if num_orders == 2:
        first = torch.sigmoid(logits)  # a softmax over pairs takes many times as long
        return torch.cat([first, 1 - first], dim=dim)
    return torch.softmax(F.pad(logits.movedim(dim, -1), (0, 1)), dim=-1).movedim(-1, dim)
