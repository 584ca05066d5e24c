"""The transforms against scipy, and their cache."""

import numpy as np
import pytest
import scipy.fft
import torch
from torch import Tensor

from tailprop.backbone import dct_product, response
from tailprop.backbone.dct import dct2, dct_basis, frequency_grid, idct2, spectral_filter
from tests.conftest import SIZES


def scipy_dct2(x: Tensor) -> np.ndarray:
    return scipy.fft.dctn(x.double().numpy(), type=2, norm="ortho", axes=(-3, -2))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("h", "w"), SIZES)
def test_dct2_matches_scipy(h: int, w: int, dtype: torch.dtype, tolerance: float) -> None:
    x = torch.randn(2, h, w, 3, dtype=dtype)
    assert np.abs(dct2(x).double().numpy() - scipy_dct2(x)).max() <= tolerance
    back = scipy.fft.idctn(x.double().numpy(), type=2, norm="ortho", axes=(-3, -2))
    assert np.abs(idct2(x).double().numpy() - back).max() <= tolerance


@pytest.mark.parametrize(("h", "w"), SIZES)
def test_inverse_and_parseval(h: int, w: int) -> None:
    x = torch.randn(2, h, w, 3, dtype=torch.float64)
    torch.testing.assert_close(idct2(dct2(x)), x, rtol=0, atol=1e-12)
    torch.testing.assert_close(dct2(idct2(x)), x, rtol=0, atol=1e-12)
    torch.testing.assert_close(dct2(x).square().sum(), x.square().sum(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 4e-2), (torch.float16, 5e-3)])
def test_half_precision(dtype: torch.dtype, tolerance: float) -> None:
    x = torch.randn(2, 14, 9, 8)
    y = dct2(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), dct2(x), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(idct2(y).float(), x, rtol=tolerance, atol=2 * tolerance)


@pytest.mark.parametrize("shape", [(5, 4, 2), (3, 5, 4, 2), (2, 3, 5, 4, 2)])
def test_any_number_of_leading_axes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    assert np.abs(dct2(x).numpy() - scipy_dct2(x)).max() <= 1e-12


def test_strided_half_of_a_wider_map() -> None:
    x = torch.randn(2, 6, 5, 8, dtype=torch.float64)[..., :4]
    assert not x.is_contiguous()
    assert np.abs(dct2(x).numpy() - scipy_dct2(x)).max() <= 1e-12
    assert idct2(dct2(x)).is_contiguous()


def test_gradients() -> None:
    x = torch.randn(2, 3, 5, 2, dtype=torch.float64, requires_grad=True)
    response = torch.rand(3, 5, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(dct2, x)
    assert torch.autograd.gradcheck(idct2, x)
    assert torch.autograd.gradcheck(lambda v, r: spectral_filter(v, lambda f: f.take(r)[None]), (x, response))


def test_frequency_grid() -> None:
    rho = frequency_grid(4, 6, torch.zeros(1, dtype=torch.float64))
    expected = [[(np.pi * m / 4) ** 2 + (np.pi * n / 6) ** 2 for n in range(6)] for m in range(4)]
    torch.testing.assert_close(rho, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)
    assert frequency_grid(4, 6, torch.zeros(1, dtype=torch.bfloat16)).dtype == torch.float32


def test_basis_cache_is_used_and_bounded() -> None:
    like = torch.zeros(1)
    assert dct_basis(11, like) is dct_basis(11, like)
    assert dct_basis(11, like) is not dct_basis(11, like.double())
    for n in range(1, 300):
        dct_basis(n, like)
    assert dct_product._cached_basis.cache_info().currsize <= 256


def test_grid_cache_is_bounded_in_bytes() -> None:
    """Images of different sizes each have a grid of their own; memory must not rise with their number."""
    like = torch.ones(1)
    assert frequency_grid(20, 30, like).data_ptr() == frequency_grid(20, 30, like).data_ptr()
    assert frequency_grid(600, 500, like).data_ptr() != frequency_grid(600, 500, like).data_ptr()
    limits = response._cached_grid.cache_info().maxsize, response._CACHED_POINTS
    assert 4 * limits[0] * limits[1] <= 64 << 20


def test_basis_cached_in_inference_mode_works_in_training() -> None:
    dct_product._cached_basis.cache_clear()
    with torch.inference_mode():
        dct2(torch.randn(1, 10, 11, 2))
    x = torch.randn(1, 10, 11, 2, requires_grad=True)
    dct2(x).sum().backward()
    assert x.grad is not None


def test_fake_and_functional_tensors_do_not_enter_the_cache() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    dct_product._cached_basis.cache_clear()
    with FakeTensorMode():
        assert dct2(torch.randn(1, 6, 7, 2)).shape == (1, 6, 7, 2)
    x = torch.randn(3, 1, 6, 7, 2)
    mapped = torch.func.vmap(torch.func.grad(lambda v: dct2(v).square().sum()))(x)
    torch.testing.assert_close(mapped, 2 * x, atol=1e-5, rtol=1e-5)
    assert np.abs(dct2(x).numpy() - scipy_dct2(x)).max() <= 1e-5
    assert type(dct_basis(6, x)) is Tensor


@pytest.mark.parametrize(
    ("x", "message"), [(torch.zeros(3, 4), "at least 3 axes"), (torch.zeros(1, 3, 4, 2, dtype=torch.uint8), "floating-point")]
)
def test_invalid_maps_raise(x: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dct2(x)
