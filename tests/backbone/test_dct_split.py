"""Transforms of an axis: every split against the matrix, in any number of axes, with gradients of all orders."""

import warnings

import numpy as np
import pytest
import scipy.fft
import torch
from torch import Tensor
from torch.autograd import forward_ad

from tailprop import dct, idct
from tailprop.backbone import dct_route
from tailprop.backbone.dct import dct_basis, spectral_filter
from tailprop.backbone.dct_product import transform
from tailprop.backbone.dct_route import COSTS, choose_pieces
from tailprop.backbone.dct_split import FFT, PRODUCT, axis_of, frequency_order, multiply_adds, splits_of
from tailprop.backbone.response import Mixture

LENGTHS = [1, 2, 3, 4, 5, 7, 9, 12, 15, 25, 30, 49, 64, 97, 167, 200, 334, 331]
SHAPES = [(2, 50, 3), (3, 9, 14, 2), (2, 5, 6, 7, 2), (1, 300, 2), (1, 8, 270, 2), (1, 4, 260, 3, 2)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("n", LENGTHS)
def test_every_way_matches_the_matrix(n: int, dtype: torch.dtype, tolerance: float) -> None:
    x = torch.randn(3, n, 2, dtype=torch.float64)
    expected = (dct_basis(n, x) @ x).transpose(0, 1)
    tolerance = tolerance * expected.abs().max().item()
    for pieces in (FFT, PRODUCT, *splits_of(n)):
        axis = axis_of(n, pieces, torch.empty(0, dtype=dtype))
        found, back = torch.empty(n, 3, 2, dtype=dtype), torch.empty(3, n, 2, dtype=dtype)
        scratch = torch.empty(2, n, 3, 2, dtype=dtype)
        axis.forward(x.to(dtype), found, scratch)
        axis.inverse(found, back, scratch)
        order = frequency_order(n, pieces)
        assert (found - (expected if order is None else expected[order])).abs().max() <= tolerance, pieces
        assert (back - x).abs().max() <= tolerance, pieces


def test_a_split_saves_multiply_adds() -> None:
    assert [multiply_adds(448, m) for m in (PRODUCT, 2, 16, 28)] == [448, 226, 72, 60]
    assert splits_of(7) == [2]
    assert splits_of(12) == [2, 3, 4, 6]


@pytest.mark.parametrize("training", [False, True])
def test_long_axes_do_not_take_the_product(training: bool) -> None:
    device = torch.device("cpu")
    assert choose_pieces(7, device, training) == PRODUCT
    for n in (224, 256, 320, 448, 512, 1024):
        assert multiply_adds(n, choose_pieces(n, device, training)) <= n / 2
    assert choose_pieces(4099, device, training) == FFT  # a prime
    assert {"cpu", "cuda"} == {kind for kind, _ in COSTS}


@pytest.mark.parametrize("shape", SHAPES)
def test_any_number_of_axes_against_scipy(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    axes = tuple(range(1, len(shape) - 1))
    for found, oracle in ((dct(x), scipy.fft.dctn), (idct(x), scipy.fft.idctn)):
        assert np.abs(found.numpy() - oracle(x.numpy(), type=2, norm="ortho", axes=axes)).max() <= 1e-12
    half = dct(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), dct(x), rtol=4e-2, atol=6e-2)
    (dct(x.requires_grad_()).square().sum() / 2).backward()
    torch.testing.assert_close(x.grad, x.detach(), rtol=0, atol=1e-12)


def small_filter(x: Tensor, weights: Tensor, *terms: Tensor) -> Tensor:
    return spectral_filter(x, lambda f: Mixture(tuple(f.take(t)[None] for t in terms), weights))


@pytest.mark.parametrize("pieces", [PRODUCT, 2, 3, FFT])
@pytest.mark.parametrize("sides", [(6,), (6, 9), (6, 3, 6)])
@pytest.mark.parametrize("channels", [1, 2])
def test_gradients_of_every_way(sides: tuple[int, ...], pieces: int, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of terms that all channels share, whose products are fused, and of terms for each channel."""
    monkeypatch.setattr(dct_route, "_forced", lambda n: pieces if n > 3 else PRODUCT)
    x = torch.randn(2, *sides, 2, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(2, 1, 2, dtype=torch.float64, requires_grad=True)
    terms = [torch.rand(*sides, channels, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(small_filter, (x, weights, *terms), fast_mode=True)
    assert torch.autograd.gradgradcheck(small_filter, (x, weights, *terms), fast_mode=True)
    assert torch.autograd.gradgradcheck(dct, x, fast_mode=True)
    plain = transform(transform(x, len(sides)) * mixed(weights, terms), len(sides), inverse=True)
    torch.testing.assert_close(small_filter(x, weights, *terms), plain, rtol=0, atol=1e-12)


def mixed(weights: Tensor, terms: list[Tensor]) -> Tensor:
    return Mixture(tuple(t[None] for t in terms), weights).whole()


def test_torch_func_and_forward_mode() -> None:
    x = torch.randn(3, 1, 28, 56, 2)
    mapped = torch.func.vmap(torch.func.grad(lambda v: dct(v).square().sum()))(x)
    torch.testing.assert_close(mapped, 2 * x, atol=1e-4, rtol=1e-4)
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore")  # PyTorch's forward mode calls its own deprecated compiler
        tangent = forward_ad.unpack_dual(dct(forward_ad.make_dual(x[0], x[1]))).tangent
    torch.testing.assert_close(tangent, dct(x[1]), atol=1e-5, rtol=1e-5)


def test_the_graph_keeps_one_map() -> None:
    """Of a filter with gradients only the coefficients are kept, and no map beside them."""
    x = torch.randn(2, 56, 56, 8, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        small_filter(x, torch.rand(2, 1, 8), *torch.rand(2, 56, 56, 1))
    assert sum(n == x.numel() for n in kept) == 1
    assert sum(kept) < 1.2 * x.numel()
