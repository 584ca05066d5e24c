"""Large maps: every route against scipy and against the matrix product, in strips and under autograd."""

import numpy as np
import pytest
import scipy.fft
import torch

from tailprop.backbone import dct_fft as fast
from tailprop.backbone import dct_filter, dct_product
from tailprop.backbone.dct import Frequencies, dct2, dct_basis, idct2, spectral_filter
from tailprop.backbone.mixers import HeatConduction, WavePropagation
from tailprop.backbone.operator import TailPropagation, tail_propagate, tail_propagate_reference

LARGE_SIZES = [(257, 5), (1, 258), (300, 300), (521, 258), (512, 3), (3, 1031), (1024, 2)]  # 257, 521, 1031 are primes


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("h", "w"), LARGE_SIZES)
def test_large_maps_match_scipy(h: int, w: int, dtype: torch.dtype, tolerance: float) -> None:
    x = torch.randn(2, h, w, 2, dtype=dtype)
    raw = x.double().numpy()
    assert np.abs(dct2(x).double().numpy() - scipy.fft.dctn(raw, type=2, norm="ortho", axes=(-3, -2))).max() <= tolerance
    assert np.abs(idct2(x).double().numpy() - scipy.fft.idctn(raw, type=2, norm="ortho", axes=(-3, -2))).max() <= tolerance


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 257])
def test_fft_matches_the_matrix_at_any_length(n: int) -> None:
    x = torch.randn(2, n, 3, dtype=torch.float64)
    torch.testing.assert_close(fast.dct_fft(x, 1), dct_basis(n, x) @ x, rtol=0, atol=1e-12)
    torch.testing.assert_close(fast.idct_fft(x, 1), dct_basis(n, x).mT @ x, rtol=0, atol=1e-12)


def test_gradients_of_the_fft_route() -> None:
    for n in (4, 5):
        x = torch.randn(2, n, 2, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda v: fast.dct_fft(v, 1), x)
        assert torch.autograd.gradcheck(lambda v: fast.idct_fft(v, 1), x)


def test_gradients_of_a_large_map() -> None:
    """The transform is orthonormal: the gradient of half the squared norm is the map itself."""
    x = torch.randn(1, 300, 4, 2, dtype=torch.float64, requires_grad=True)
    (dct2(x).square().sum() / 2).backward()
    torch.testing.assert_close(x.grad, x.detach(), rtol=0, atol=1e-12)


def test_half_precision_of_large_maps() -> None:
    x = torch.randn(1, 300, 20, 4)
    assert dct2(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(dct2(x.bfloat16()).float(), dct2(x), rtol=2e-2, atol=4e-2)


@pytest.mark.parametrize(("h", "w"), [(300, 40), (40, 300), (270, 280)])
def test_strips_match_the_whole_map(h: int, w: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dct_filter, "STRIP_BYTES", 50_000)  # many strips, the last one shorter
    x, response = torch.randn(2, h, w, 3, dtype=torch.float64), torch.rand(2, h, w, 3, dtype=torch.float64)
    asked: list[slice] = []

    def respond(frequencies: Frequencies) -> torch.Tensor:
        asked.append(frequencies.columns)
        return torch.stack([frequencies.take(one) for one in response])

    with torch.no_grad():
        found = spectral_filter(x, respond)
    torch.testing.assert_close(found, idct2(dct2(x) * response), rtol=0, atol=1e-12)
    torch.testing.assert_close(spectral_filter(x, respond), found, rtol=0, atol=1e-12)  # with gradients on
    assert len(asked) > 3
    assert found.is_contiguous()


def test_a_strided_half_in_strips() -> None:
    x = torch.randn(1, 300, 20, 8)[..., :4]
    with torch.no_grad():
        found = spectral_filter(x, lambda _: torch.ones(1))
    torch.testing.assert_close(found, x, rtol=0, atol=1e-5)


def test_the_operator_on_a_large_map() -> None:
    x = torch.randn(2, 20, 300, 4)
    with torch.no_grad():
        found = tail_propagate(x, (8.0, 2.0), (0.3, 0.7))
    torch.testing.assert_close(found, tail_propagate_reference(x, (8.0, 2.0), (0.3, 0.7)), rtol=0, atol=1e-5)
    torch.testing.assert_close(tail_propagate(x, (8.0, 2.0), (0.3, 0.7)), found, rtol=0, atol=1e-5)  # with gradients on


@pytest.mark.parametrize("kind", [TailPropagation, HeatConduction, WavePropagation])
def test_mixers_with_and_without_strips(kind: type[torch.nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dct_filter, "STRIP_BYTES", 50_000)
    mixer, x = kind(8), torch.randn(2, 280, 12, 8)
    arguments = (x, torch.rand(280, 12, 8)) if mixer.needs_frequency_embedding else (x,)
    with_gradients = mixer(*arguments)
    with torch.no_grad():
        torch.testing.assert_close(mixer(*arguments), with_gradients.detach(), rtol=1e-4, atol=1e-5)


def test_captured_maps_use_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> torch.Tensor:
        raise AssertionError("there is no FFT in a graph")

    monkeypatch.setattr(dct_product, "dct_fft", refuse)
    monkeypatch.setattr(dct_product, "idct_fft", refuse)
    compiled = torch.compile(lambda v: idct2(dct2(v)), backend="eager", fullgraph=True)
    y = torch.randn(1, 300, 4, 2)
    torch.testing.assert_close(compiled(y), y, rtol=0, atol=1e-5)


def test_filter_never_allocates_the_whole_response() -> None:
    """A filter without gradients allocates two maps, its result among them; no operation computes more than a strip."""
    largest, maps = 0, 0
    x = torch.randn(1, 1024, 512, 32)
    mixer = TailPropagation(32)

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest, maps
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and not func.is_view:
                if "empty" in str(func):
                    maps += out.numel() == x.numel()
                else:
                    largest = max(largest, out.numel())
            return out

    with torch.no_grad(), Watch():
        mixer(x)
    assert largest < x.numel() / 8
    assert maps == 2
