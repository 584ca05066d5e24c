"""Mixers without a transform: attention, depth-wise convolution, average pooling, and none.

Shapes: B batch, H height, W width, C channels.
"""

from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._checks import check_at_least
from ..layers import to_nchw, to_nhwc
from .registry import register_mixer

__all__ = ["AveragePool", "DepthwiseConv", "NoPropagation", "SelfAttention"]


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
        dilation = round(1 / self.spacing)
        reach = dilation * (self.kernel_size[0] // 2)
        return to_nhwc(F.conv2d(to_nchw(x), self.weight, self.bias, padding=reach, dilation=dilation, groups=self.groups))


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
