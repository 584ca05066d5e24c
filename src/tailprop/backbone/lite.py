"""A backbone for CPUs: the propagation of `model` in layers that have less beside their products.

Shapes: B batch, H height, W width of the current map, C channels; r is `mlp_ratio`.

On a CPU the paper's layers spend a third of their time outside of matrix products, and half of that on the two largest maps.
What is taken over from backbones that people choose for CPUs (MobileNetV4, RepViT, StarNet), and what for:

- Batch norms and ReLU in place of layer norms, GELU and SiLU. In evaluation a batch norm is part of its convolution (`fuse`).
- One pair of products a layer in place of two: block and MLP share them, so that a layer reads and writes its map once.
- Propagation only at 1/16 and 1/32 of the image, where maps are small, and most layers there: parameters are many and cheap.

Names of modules, features and settings are those of `TailProp`.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .fused import FusedLinear
from .layers import StochasticDepth, is_hooked, to_nchw, to_nhwc
from .linear import Linear
from .model import TailProp

__all__ = ["ConvNorm", "LiteLayer", "TailPropLite"]


class ConvNorm(nn.Module):
    """A convolution without bias and a batch norm, (B, C, H, W) -> (B, C', H', W')."""

    def __init__(
        self, dim: int, out_dim: int, kernel_size: int, stride: int = 1, dilation: int = 1, groups: int = 1, **dd: Any
    ) -> None:
        super().__init__()
        padding = dilation * (kernel_size // 2)
        self.conv = nn.Conv2d(dim, out_dim, kernel_size, stride, padding, dilation, groups, bias=False, **dd)
        self.norm = nn.BatchNorm2d(out_dim, **dd)

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))

    @torch.no_grad()
    def fuse(self) -> nn.Conv2d:
        """The same as one convolution, with the statistics of evaluation. timm's `reparameterize_model` calls it."""
        scale, shift = _affine(self.norm)
        fused = copy.deepcopy(self.conv)
        fused.weight.mul_(scale[:, None, None, None])
        fused.bias = nn.Parameter(shift)
        return fused


class LiteStem(nn.Module):
    """Two stride-2 convolutions with ReLU between: (B, 3, H, W) -> (B, H/4, W/4, C)."""

    def __init__(self, in_chans: int, dim: int, **dd: Any) -> None:
        super().__init__()
        self.conv1 = ConvNorm(in_chans, dim // 2, 3, stride=2, **dd)
        self.conv2 = ConvNorm(dim // 2, dim, 3, stride=2, **dd)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv1(x.contiguous(memory_format=torch.channels_last)))
        return to_nhwc(self.conv2(x))


class LiteDownsample(nn.Module):
    """Stride-2 convolution: (B, H, W, C) -> (B, H/2, W/2, C'); with stride 1, the size is kept."""

    def __init__(self, dim: int, out_dim: int, stride: int = 2, dilation: int = 1, **dd: Any) -> None:
        super().__init__()
        self.conv = ConvNorm(dim, out_dim, 3, stride, dilation, **dd)

    def forward(self, x: Tensor) -> Tensor:
        return to_nhwc(self.conv(to_nchw(x)))


class LinearNorm(nn.Module):
    """A linear layer without bias and a batch norm, (B, H, W, C) -> (B, H, W, C')."""

    def __init__(self, dim: int, out_dim: int, **dd: Any) -> None:
        super().__init__()
        self.linear = Linear(dim, out_dim, bias=False, **dd)
        self.norm = nn.BatchNorm2d(out_dim, **dd)

    def forward(self, x: Tensor) -> Tensor:
        return to_nhwc(self.norm(to_nchw(self.linear(x))))

    def fuse(self, act: str = "none") -> FusedLinear:
        scale, shift = _affine(self.norm)
        return FusedLinear(self.linear.weight * scale[:, None], shift, act)


class LiteLayer(nn.Module):
    """x + BatchNorm(Linear(TPO(p) * ReLU(g)) + Linear(ReLU(e))), where p, g and e are each BatchNorm(Linear(DWConv(x))).

    p and g have C channels, as the branches of the paper's block; e has r C and is the hidden layer of its MLP.
    """

    def __init__(
        self,
        dim: int,
        mixer: nn.Module,
        mlp_ratio: float = 2.0,
        post_norm: bool = False,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        dilation: int = 1,
        **dd: Any,
    ) -> None:
        super().__init__()
        if post_norm or layer_scale is not None:
            raise ValueError("a lite backbone has batch norms alone; leave out post_norm and layer_scale")
        hidden = int(dim * mlp_ratio)
        self.growth = 3.0 + mlp_ratio  # size of what a layer has in memory over that of the map
        self.dwconv = ConvNorm(dim, dim, 3, dilation=dilation, groups=dim, **dd)
        self.prop, self.gate, self.fc1 = (LinearNorm(dim, width, **dd) for width in (dim, dim, hidden))
        self.mixer = mixer
        self.out_proj, self.fc2 = (Linear(width, dim, bias=False, **dd) for width in (dim, hidden))
        self.norm = nn.BatchNorm2d(dim, **dd)
        self.drop_path = StochasticDepth(drop_path)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.norm.weight)  # a layer starts as the identity

    def forward(self, x: Tensor, *embedding: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        return self.drop_path(x, lambda kept: self._branch(kept, *embedding), self)

    def _branch(self, x: Tensor, *embedding: Tensor) -> Tensor:
        y = to_nhwc(self.dwconv(to_nchw(x)))
        propagated = self.mixer(self.prop(y), *embedding) * torch.relu(self.gate(y))
        y = self.out_proj(propagated) + self.fc2(torch.relu(self.fc1(y)))
        return to_nhwc(self.norm(to_nchw(y)))

    def fuse(self) -> nn.Module:
        """The same for inference; the layer itself if it has hooks."""
        return self if is_hooked(self) else FusedLiteLayer(self)


class FusedLiteLayer(nn.Module):
    """`LiteLayer` for inference: every norm is part of a product, and every activation and sum can be."""

    def __init__(self, layer: LiteLayer) -> None:
        super().__init__()
        self.growth = layer.growth
        self.dwconv, self.mixer = layer.dwconv.fuse(), layer.mixer
        self.prop, self.gate, self.fc1 = layer.prop.fuse(), layer.gate.fuse("relu"), layer.fc1.fuse("relu")
        scale, shift = _affine(layer.norm)
        self.fc2 = FusedLinear(layer.fc2.weight * scale[:, None], shift)
        self.out_proj = FusedLinear(layer.out_proj.weight * scale[:, None], None)

    def forward(self, x: Tensor, *embedding: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        y = to_nhwc(self.dwconv(to_nchw(x)))
        propagated = self.mixer(self.prop(y), *embedding) * self.gate(y)
        return self.out_proj(propagated, self.fc2(self.fc1(y), x))


@torch.no_grad()
def _affine(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Scale and shift of a batch norm in evaluation, (C,) each."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    return scale, norm.bias - norm.running_mean * scale


class TailPropLite(TailProp):
    """`TailProp` with the layers of this file; the first two stages do not propagate."""

    stem_type = LiteStem
    downsample_type = LiteDownsample
    layer_type = LiteLayer
    first_propagating = 2
