"""The MLP of a layer, sparing with memory where PyTorch would not be.

Shapes: B batch, H height, W width, C channels.

Its hidden layer is four times as wide as anything else. On a CPU it is computed in slices (see `slicing`). For the backward
pass PyTorch keeps the hidden layer before and after GELU; `gelu_linear` keeps it once and applies GELU again on the
way back, a little arithmetic for the memory of a hidden layer. A graph under capture is left plain: its compiler decides.
"""

from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from tailprop.slicing import in_slices, is_captured, is_hooked

__all__ = ["MLP", "gelu_linear"]


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
        hidden = self.fc1(x)
        if _is_plain(hidden, self.fc2):
            return self.fc2(F.gelu(hidden))
        return gelu_linear(hidden, self.fc2.weight, self.fc2.bias)


class _GeluLinear(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(F.gelu(hidden), weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        hidden, weight, _ = inputs
        ctx.save_for_backward(hidden, weight)
        ctx.save_for_forward(hidden, weight)

    @staticmethod
    def jvp(ctx: Any, d_hidden: Tensor | None, d_weight: Tensor | None, d_bias: Tensor | None) -> Tensor:
        hidden, weight = ctx.saved_tensors
        parts = []
        if d_hidden is not None:
            parts.append(F.linear(torch.ops.aten.gelu_backward(d_hidden, hidden), weight))
        if d_weight is not None:
            parts.append(F.linear(F.gelu(hidden), d_weight))
        if d_bias is not None:
            parts.append(d_bias.expand(*hidden.shape[:-1], -1))
        return torch.stack(parts).sum(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden, weight = ctx.saved_tensors
        rows, hidden_rows = grad.flatten(0, -2), hidden.flatten(0, -2)
        # Under autocast the products ran in grad's dtype, and so they do here; each result returns in its input's dtype.
        grad_hidden = torch.ops.aten.gelu_backward((rows @ weight.to(grad.dtype)).to(hidden.dtype), hidden_rows)
        grad_weight = rows.mT @ F.gelu(hidden_rows).to(grad.dtype)
        return grad_hidden.view_as(hidden), grad_weight.to(weight.dtype), rows.sum(0).to(weight.dtype)


def gelu_linear(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """linear(gelu(hidden), weight, bias), keeping for the backward pass only `hidden` and `weight`."""
    return _GeluLinear.apply(hidden, weight, bias)


def _is_plain(hidden: Tensor, fc2: nn.Module) -> bool:
    """Whether fc2 has to be called as a module: a captured graph, someone's hook, or an adapter in its place."""
    if is_captured(hidden) or not torch.is_grad_enabled():
        return True
    return type(fc2) is not nn.Linear or is_hooked(fc2)
