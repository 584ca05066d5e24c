"""Mixers without a transform: attention, depth-wise convolution, average pooling, and none.

Shapes: B batch, H height, W width, C channels.
"""

from functools import partial
from typing import Any, Final

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from .._checks import check_at_least
from ..layers import is_captured, to_nchw, to_nhwc
from .registry import register_mixer

__all__ = ["AveragePool", "DepthwiseConv", "NoPropagation", "SelfAttention", "depthwise_conv"]


def depthwise_conv(x: Tensor, weight: Tensor, dilation: int = 1) -> Tensor:
    """A depth-wise convolution with zeros outside the map: x (B, H, W, C), weight (C, 1, k, k), k odd."""
    if is_captured(x) or x.device.type != "cpu" or not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return _correlate(x, weight, dilation)
    return _DepthwiseConv.apply(x, weight, dilation)


torch.fx.wrap("depthwise_conv")  # a leaf function for symbolic tracing, as in `operator`


class _DepthwiseConv(torch.autograd.Function):
    """The same with gradients that are convolutions themselves.

    On a CPU, PyTorch's own backward pass of a 31x31 kernel takes over ten times as long.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dilation: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dilation = dilation
        return _correlate(x, weight, dilation)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        batch, _, _, dim = x.shape
        for_x = _correlate(grad, weight.flip(2, 3), ctx.dilation)
        # dL/dw at an offset sums x times the gradient, shifted by it: a correlation whose kernel is as large as the map
        kernels = grad.permute(0, 3, 1, 2).flatten(0, 1)[:, None]  # (B C, 1, H, W)
        maps = x.permute(1, 2, 0, 3).flatten(2).permute(2, 0, 1)[None]  # (1, B C, H, W), channels last in memory
        reach = ctx.dilation * (weight.shape[-1] // 2)
        for_weight = F.conv2d(maps, kernels, padding=reach, stride=ctx.dilation, groups=batch * dim)
        return for_x, for_weight.unflatten(1, (batch, dim)).sum((0, 1))[:, None], None


def _correlate(x: Tensor, weight: Tensor, dilation: int) -> Tensor:
    reach = dilation * (weight.shape[-1] // 2)
    return to_nhwc(F.conv2d(to_nchw(x), weight, padding=reach, dilation=dilation, groups=len(weight)))


@register_mixer("attention")
class SelfAttention(nn.Module):
    """Multi-head self-attention over all positions. The block provides the output projection."""

    needs_frequency_embedding: Final = False

    def __init__(
        self, dim: int, head_dim: int = 32, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        if head_dim < 1 or dim % head_dim:
            raise ValueError(f"attention needs channels divisible by head_dim, got {dim} channels and head_dim {head_dim}")
        self.head_dim = head_dim
        self.qkv = nn.Linear(dim, 3 * dim, **dd)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x.flatten(1, 2)).unflatten(-1, (3, -1, self.head_dim))  # (B, HW, 3, heads, head_dim)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, HW, head_dim)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).reshape_as(x)


class DepthwiseConv(nn.Conv2d):
    """A depth-wise convolution: the control with a learned kernel of limited reach. Outside the map there are zeros.

    On a map that is finer than usual it is dilated, so that it reaches as far.
    """

    needs_frequency_embedding: Final = False
    spacing: float = 1.0

    def __init__(
        self, dim: int, kernel_size: int = 7, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        _check_odd(kernel_size)
        super().__init__(dim, dim, kernel_size, groups=dim, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)  # PyTorch's depends on the size of the kernel, and matched kernels start alike

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        y = depthwise_conv(x, self.weight, round(1 / self.spacing))
        return y if self.bias is None else y + self.bias


register_mixer("conv7")(partial(DepthwiseConv, kernel_size=7))
register_mixer("conv31")(partial(DepthwiseConv, kernel_size=31))


@register_mixer("pool")
class AveragePool(nn.Module):
    """PoolFormer's average over a window: the control without a learned response.

    Only positions of the map are averaged. PoolFormer subtracts the input because its pooling is the whole residual branch;
    here the branch has projections and a gate, so nothing is subtracted.
    """

    needs_frequency_embedding: Final = False
    spacing: float = 1.0

    def __init__(
        self,
        dim: int,  # noqa: ARG002 - every mixer has the same constructor
        kernel_size: int = 7,
        device: torch.device | None = None,  # noqa: ARG002
        dtype: torch.dtype | None = None,  # noqa: ARG002
    ) -> None:
        super().__init__()
        _check_odd(kernel_size)
        self.kernel_size = kernel_size

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        reach = round(1 / self.spacing) * (self.kernel_size // 2)  # a finer map has a larger window
        return to_nhwc(F.avg_pool2d(to_nchw(x), 2 * reach + 1, stride=1, padding=reach, count_include_pad=False))


@register_mixer("identity")
class NoPropagation(nn.Module):
    """The control: the block without a mixer; only its 3x3 convolution passes information between positions."""

    needs_frequency_embedding: Final = False

    def __init__(
        self,
        dim: int,  # noqa: ARG002 - every mixer has the same constructor
        device: torch.device | None = None,  # noqa: ARG002
        dtype: torch.dtype | None = None,  # noqa: ARG002
    ) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


def _check_odd(kernel_size: int) -> None:
    check_at_least("kernel_size", kernel_size, 1)
    if kernel_size % 2 == 0:
        raise ValueError(f"kernel_size must be odd, so that a position is the centre of its window; got {kernel_size}")
