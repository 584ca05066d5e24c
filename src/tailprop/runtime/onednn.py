"""Linear layers and 1x1 convolutions whose FP32 products are computed by oneDNN, for inference on a CPU.

PyTorch computes FP32 products with MKL where it was built with it, and MKL uses AVX-512 on Intel's processors only, on others
AVX2. oneDNN uses what the processor has. On an AMD EPYC of 2024 (Zen 5) MKL reaches 59 and oneDNN 130 billion multiply-adds a
second in one thread, with the same rounding errors. PyTorch reaches oneDNN through an operator of its compiler,
`mkldnn::_linear_pointwise`, which has no gradient. It also computes an activation or a sum after the product, and takes weights
in the order that oneDNN prefers; PyTorch's own products put them in that order in every call.
"""

from typing import Any, Final, TypeGuard

import timm.layers
import torch
from torch import Tensor, nn

__all__ = ["OneDNNConv1x1", "OneDNNLinear", "has_onednn_products", "onednn_linear", "use_onednn_products"]

_DTYPES: Final = (torch.float32, torch.bfloat16)


def has_onednn_products() -> bool:
    """Whether this build of PyTorch has the operator."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None, act: str = "none") -> Tensor:
    """act(x W^T + b), where act is none, gelu, relu or swish: (..., K), (N, K), (N,) -> (..., N)."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, act, [], "none" if act == "gelu" else "")


def onednn_linear_plus(x: Tensor, weight: Tensor, bias: Tensor | None, plus: Tensor) -> Tensor:
    """x W^T + b + plus: (..., K), (N, K), (N,), (..., N) -> (..., N)."""
    return torch.ops.mkldnn._linear_pointwise.binary(x, plus, weight, bias, "add")


class _Packed(nn.Module):
    """A weight beside its copy in the order in which oneDNN reads it, which is made in the first call."""

    weight: Tensor
    _packed: Tensor | None = None

    def packed(self, x: Tensor) -> Tensor:  # (N, K)
        if self._packed is None:
            rows = x.numel() // max(1, x.shape[-1])
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach().flatten(1).contiguous(), rows)
        return self._packed

    def _apply(self, *args: Any, **kwargs: Any) -> Any:  # .to(), .bfloat16() and their like
        self._packed = None
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._packed = None
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:  # of copies and pickles
        return self.__dict__ | {"_packed": None}


class OneDNNLinear(_Packed):
    """A linear layer with the parameters of another one, with the activation that follows it, and a tensor that is added."""

    def __init__(self, linear: nn.Linear, act: str = "none") -> None:
        super().__init__()
        self.act = act
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:  # (..., K) -> (..., N)
        weight = self.packed(x)
        if plus is not None and self.act == "none":
            return onednn_linear_plus(x, weight, self.bias, plus)
        y = onednn_linear(x, weight, self.bias, self.act)
        return y if plus is None else y + plus


class OneDNNConv1x1(_Packed):
    """A 1x1 convolution with the parameters of another one, as a linear layer over the channels."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.in_channels, self.out_channels = conv.in_channels, conv.out_channels

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W) in channels-last memory -> (B, N, H, W), likewise
        x = x.permute(0, 2, 3, 1)
        return onednn_linear(x, self.packed(x), self.bias).permute(0, 3, 1, 2)


def use_onednn_products(model: nn.Module) -> int:
    """Replace linear layers and 1x1 convolutions of a model in place; returns how many.

    Subclasses and layers with hooks stay as they are: they may do more than the product.
    """
    count = 0
    for parent in list(model.modules()):
        count += _fuse_mlp(parent)
        for name, child in list(parent.named_children()):
            if (replacement := _replacement(child)) is not None:
                setattr(parent, name, replacement)
                count += 1
    return count


def _fuse_mlp(module: nn.Module) -> int:
    """Give the first layer of an MLP (fc1, act, fc2 in timm) its activation: oneDNN computes it with the product."""
    fc1, act = getattr(module, "fc1", None), getattr(module, "act", None)
    if not _is_linear(fc1) or _replacement(fc1) is None or not hasattr(module, "fc2"):
        return 0
    if (name := _fusible(act)) is None:
        return 0
    module.fc1, module.act = OneDNNLinear(fc1, name), nn.Identity()
    return 1


def _fusible(act: Any) -> str | None:
    """oneDNN's name of an activation module; None if it has none, or if the module has hooks."""
    if not isinstance(act, nn.Module) or act._forward_hooks or act._forward_pre_hooks:
        return None
    if type(act) is nn.ReLU:
        return "relu"
    return "gelu" if type(act) in (nn.GELU, timm.layers.GELU) and getattr(act, "approximate", "none") == "none" else None


def _is_linear(layer: Any) -> TypeGuard[nn.Linear]:
    """Whether the layer is a linear layer and nothing more."""
    return type(layer) is nn.Linear or (isinstance(layer, nn.Linear) and getattr(layer, "is_plain_product", False))


def _replacement(layer: nn.Module) -> nn.Module | None:
    if layer._forward_hooks or layer._forward_pre_hooks:
        return None
    if _is_linear(layer) and layer.weight.dtype in _DTYPES:
        return OneDNNLinear(layer, getattr(layer, "act", "none"))
    if type(layer) is nn.Conv2d and layer.weight.dtype in _DTYPES and _is_product(layer):
        return OneDNNConv1x1(layer)
    return None


def _is_product(conv: nn.Conv2d) -> bool:
    """Whether the convolution is a matrix product at every position."""
    return conv.kernel_size == (1, 1) and conv.stride == (1, 1) and conv.padding in ((0, 0), 0, "valid") and conv.groups == 1
