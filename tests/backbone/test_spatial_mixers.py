"""Depth-wise convolution and average pooling against sums over positions."""

import pytest
import torch
from torch import Tensor

from tailprop import AveragePool, DepthwiseConv
from tailprop.backbone.mixers import build_mixer
from tailprop.backbone.mixers.spatial import depthwise_conv

SIZES = [(1, 1), (2, 5), (9, 4), (8, 8)]


def neighbours(x: Tensor, i: int, j: int, reach: int, step: int = 1) -> list[tuple[int, int, Tensor]]:
    """Offsets and values, (B, C), of the positions around (i, j) that lie on the map."""
    offsets = range(-reach, reach + 1, step)
    inside = [(a, b) for a in offsets for b in offsets if 0 <= i + a < x.shape[1] and 0 <= j + b < x.shape[2]]
    return [(a, b, x[:, i + a, j + b]) for a, b in inside]


@pytest.mark.parametrize(("h", "w"), SIZES)
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("name", ["conv7", "conv31"])
def test_convolution_against_a_direct_sum(name: str, dilation: int, h: int, w: int) -> None:
    module, x = build_mixer(name, 3, dtype=torch.float64), torch.randn(2, h, w, 3, dtype=torch.float64)
    assert isinstance(module, DepthwiseConv)
    module.spacing = 1 / dilation
    half, y = module.kernel_size[0] // 2, module(x)
    for i in range(h):
        for j in range(w):
            expected = module.bias + torch.zeros(2, 3)
            for a, b, value in neighbours(x, i, j, half * dilation, dilation):
                expected = expected + module.weight[:, 0, half + a // dilation, half + b // dilation] * value
            torch.testing.assert_close(y[:, i, j], expected.double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("h", "w"), [*SIZES, (13, 6)])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("kernel_size", [1, 3, 7])
def test_gradients_of_the_convolution(kernel_size: int, dilation: int, h: int, w: int) -> None:
    x = torch.randn(2, h, w, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 1, kernel_size, kernel_size, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x, weight: depthwise_conv(x, weight, dilation), (x, weight))


@pytest.mark.parametrize(("h", "w"), SIZES)
@pytest.mark.parametrize("dilation", [1, 2])
def test_pooling_against_a_loop(dilation: int, h: int, w: int) -> None:
    module, x = AveragePool(3), torch.randn(2, h, w, 3)
    module.spacing = 1 / dilation
    y = module(x)
    for i in range(h):
        for j in range(w):
            around = torch.stack([value for _, _, value in neighbours(x, i, j, 3 * dilation)])
            torch.testing.assert_close(y[:, i, j], around.mean(0))


@pytest.mark.parametrize("kind", [DepthwiseConv, AveragePool])
def test_even_kernels_are_rejected(kind: type[torch.nn.Module]) -> None:
    with pytest.raises(ValueError, match="kernel_size must be odd"):
        kind(8, kernel_size=4)


def test_kernel_size_is_a_setting() -> None:
    assert build_mixer("conv7", 4, kernel_size=5).weight.shape == (4, 1, 5, 5)
    assert build_mixer("conv31", 4).weight.shape == (4, 1, 31, 31)
