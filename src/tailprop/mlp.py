"""The MLP of a layer. Its hidden layer is four times as wide as anything else, so on a CPU it is computed in slices."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tailprop.slicing import in_slices

__all__ = ["MLP"]


class MLP(nn.Module):
    """Linear, GELU, linear over the channels of a channels-last map."""

    def __init__(self, dim: int, ratio: float = 4.0, **dd: Any) -> None:
        super().__init__()
        self.ratio = ratio
        self.fc1 = nn.Linear(dim, int(dim * ratio), **dd)
        self.fc2 = nn.Linear(int(dim * ratio), dim, **dd)

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        return in_slices(self._forward, x, self.ratio, self, lead=3)

    def _forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))
