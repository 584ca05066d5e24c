"""Linear layers and 1x1 convolutions whose FP32 products are computed by oneDNN, for inference on a CPU.

PyTorch computes FP32 products with MKL where it was built with it, and MKL uses AVX-512 on Intel's processors only, on others
AVX2. oneDNN uses what the processor has. On an AMD EPYC of 2024 (Zen 5) MKL reaches 59 and oneDNN 130 billion multiply-adds a
second in one thread, with the same rounding errors. PyTorch reaches oneDNN through an operator of its compiler,
`mkldnn::_linear_pointwise`, which has no gradient.
"""

import torch
from torch import Tensor, nn

__all__ = ["OneDNNConv1x1", "OneDNNLinear", "has_onednn_products", "use_onednn_products"]


def has_onednn_products() -> bool:
    """Whether this build of PyTorch has the operator."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # (..., K), (N, K), (N,) -> (..., N)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class OneDNNLinear(nn.Module):
    """A linear layer with the parameters of another one."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:  # (..., K) -> (..., N)
        return _linear(x, self.weight, self.bias)


class OneDNNConv1x1(nn.Module):
    """A 1x1 convolution with the parameters of another one, as a linear layer over the channels."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.in_channels, self.out_channels = conv.in_channels, conv.out_channels

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W) in channels-last memory -> (B, N, H, W), likewise
        return _linear(x.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def use_onednn_products(model: nn.Module) -> int:
    """Replace linear layers and 1x1 convolutions of a model in place; returns how many.

    Subclasses and layers with hooks stay as they are: they may do more than the product.
    """
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (replacement := _replacement(child)) is not None:
                setattr(parent, name, replacement)
                count += 1
    return count


def _replacement(layer: nn.Module) -> nn.Module | None:
    if layer._forward_hooks or layer._forward_pre_hooks:
        return None
    if type(layer) is nn.Linear and layer.weight.dtype == torch.float32:
        return OneDNNLinear(layer)
    if type(layer) is nn.Conv2d and layer.weight.dtype == torch.float32 and _is_product(layer):
        return OneDNNConv1x1(layer)
    return None


def _is_product(conv: nn.Conv2d) -> bool:
    """Whether the convolution is a matrix product at every position."""
    return conv.kernel_size == (1, 1) and conv.stride == (1, 1) and conv.padding in ((0, 0), 0, "valid") and conv.groups == 1
