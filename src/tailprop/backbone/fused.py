"""Layers for inference, in which activations and residual sums are part of the products they belong to.

`fuse()` of a layer makes them; timm's `reparameterize_model` calls it, and so does `tailprop.optimize`. The layer itself is the
reference: the same parameters, the same result. A fused layer takes fewer passes over the memory in two ways. The gate has a
product of its own, so that its activation and the mixer get whole tensors in place of halves of one. And oneDNN computes a
product together with the activation or the sum after it, which `FusedLinear` leaves to whoever replaces it
(`runtime/onednn.py`).

Shapes: B batch, H height, W width of the map, C channels.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import MLP, in_slices, is_hooked, to_nchw, to_nhwc
from .linear import Linear

if TYPE_CHECKING:
    from .model import TPOLayer

__all__ = ["FusedLinear", "FusedTPOLayer"]

ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "swish": F.silu,
}


class FusedLinear(Linear):
    """act(x W^T + b) + plus, (..., K) -> (..., N)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, act: str = "none") -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias is not None, device="meta")
        self.act = act  # a name of oneDNN
        self.weight = nn.Parameter(weight.detach().clone())
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach().clone()))

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        y = ACTIVATIONS[self.act](super().forward(x))
        return y if plus is None else y + plus


class FusedTPOLayer(nn.Module):
    """`TPOLayer` for inference."""

    def __init__(self, layer: "TPOLayer") -> None:
        super().__init__()
        block, mlp, dim = layer.block, layer.mlp, layer.norm1.normalized_shape[0]
        self.post_norm, self.growth = layer.post_norm, layer.growth
        self.dwconv, self.mixer, self.norm = block.dwconv, block.mixer, block.norm
        self.prop = FusedLinear(block.in_proj.weight[:dim], block.in_proj.bias[:dim])
        self.gate = FusedLinear(block.in_proj.weight[dim:], block.in_proj.bias[dim:], "swish")
        self.fc1 = FusedLinear(mlp.fc1.weight, mlp.fc1.bias, "gelu")
        scales = layer.gamma1, layer.gamma2
        if self.post_norm:  # a layer scale belongs to the last operation of its branch
            self.norm1, self.norm2 = map(_scaled_norm, (layer.norm1, layer.norm2), scales)
            scales = None, None
        else:
            self.norm1, self.norm2 = layer.norm1, layer.norm2
        self.out_proj, self.fc2 = map(_scaled_linear, (block.out_proj, mlp.fc2), scales)

    @staticmethod
    def takes(layer: "TPOLayer") -> bool:
        """Whether the layer has no hooks, and the MLP and linear layers that it was created with."""
        linears = (layer.block.in_proj, layer.block.out_proj, layer.mlp.fc1, layer.mlp.fc2)
        is_usual = type(layer.mlp) is MLP and type(layer.mlp.act) is nn.GELU and all(type(fc) is Linear for fc in linears)
        return is_usual and not is_hooked(layer)

    def forward(self, x: Tensor, *embedding: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        if self.post_norm:
            x = x + self.norm1(self.out_proj(self._gated(x, *embedding)))
        else:
            x = self.out_proj(self._gated(self.norm1(x), *embedding), x)
        return in_slices(self._expand, x, self.growth, self, lead=3)

    def _gated(self, x: Tensor, *embedding: Tensor) -> Tensor:
        x = to_nhwc(self.dwconv(to_nchw(x)))
        return self.norm(self.mixer(self.prop(x), *embedding)) * self.gate(x)

    def _expand(self, x: Tensor) -> Tensor:
        if self.post_norm:
            return x + self.norm2(self.fc2(self.fc1(x)))
        return self.fc2(self.fc1(self.norm2(x)), x)


def _scaled_linear(linear: Any, scale: Tensor | None) -> FusedLinear:
    """scale * (x W^T + b)."""
    if scale is None:
        return FusedLinear(linear.weight, linear.bias)
    return FusedLinear(linear.weight * scale[:, None], linear.bias * scale)


@torch.no_grad()
def _scaled_norm(norm: nn.LayerNorm, scale: Tensor | None) -> nn.LayerNorm:
    if scale is None:
        return norm
    scaled = nn.LayerNorm(norm.normalized_shape, norm.eps, device=scale.device, dtype=scale.dtype)
    scaled.weight.copy_(norm.weight * scale)
    scaled.bias.copy_(norm.bias * scale)
    return scaled
