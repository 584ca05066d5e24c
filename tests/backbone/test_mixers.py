"""Heat, wave, attention and identity: correctness; the common interface of all mixers."""

import math

import pytest
import scipy.fft
import torch
import torch.fx

from tailprop import MIXERS, HeatConduction, NoPropagation, SelfAttention, WavePropagation, tail_propagate
from tailprop.backbone.mixers import build_mixer, heat_conduct, register_mixer, resample_embedding, wave_propagate
from tailprop.backbone.model import init_module

DIM = 32  # one head of attention
MAPS = [(1, 1), (1, 4), (5, 1), (2, 2), (7, 3), (16, 9)]


def inputs(module: torch.nn.Module, h: int, w: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    x = torch.randn(2, h, w, DIM, dtype=dtype)
    return (x, torch.rand(h, w, DIM, dtype=dtype)) if module.needs_frequency_embedding else (x,)


@pytest.mark.parametrize("mixer", MIXERS)
def test_any_map_has_gradients(mixer: str) -> None:
    module = build_mixer(mixer, DIM)
    for h, w in MAPS:
        arguments = inputs(module, h, w)
        arguments[0].requires_grad_()
        y = module(*arguments)
        assert y.shape == arguments[0].shape
        y.square().sum().backward()
        for tensor in (arguments[0], *module.parameters()):
            assert tensor.grad is not None
            assert torch.isfinite(tensor.grad).all()


@pytest.mark.parametrize("mixer", MIXERS)
def test_precisions(mixer: str) -> None:
    torch.manual_seed(0)
    module = build_mixer(mixer, DIM)
    arguments = inputs(module, 6, 5)
    full = module(*arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(module(*arguments).float(), full, rtol=5e-2, atol=5e-2)
    half = module.bfloat16()(*(a.bfloat16() for a in arguments))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), full, rtol=5e-2, atol=5e-2)
    double = build_mixer(mixer, DIM, dtype=torch.float64)
    assert double(*inputs(double, 3, 4, torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("mixer", ["gfnet", "afno"])
def test_spectra_are_computed_in_full_precision_under_autocast(mixer: str) -> None:
    module, x = build_mixer(mixer, DIM), torch.randn(2, 6, 5, DIM)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = module(x)
    torch.testing.assert_close(low, module(x), rtol=0, atol=0)


@pytest.mark.parametrize("mixer", MIXERS)
def test_symbolic_tracing(mixer: str) -> None:
    module = build_mixer(mixer, DIM)
    traced = torch.fx.symbolic_trace(module)
    for h, w in MAPS:
        arguments = inputs(module, h, w)
        torch.testing.assert_close(traced(*arguments), module(*arguments))


@pytest.mark.parametrize("mixer", MIXERS)
def test_parameters_on_meta_are_initialized_and_loaded(mixer: str) -> None:
    module = build_mixer(mixer, DIM, device="meta")
    assert module(*(a.to("meta") for a in inputs(module, 3, 4))).shape == (2, 3, 4, DIM)
    module = module.to_empty(device="cpu")
    for parameter in module.parameters():
        torch.nn.init.constant_(parameter, float("nan"))
    for part in reversed(list(module.modules())):  # children before parents
        init_module(part)
    assert all(torch.isfinite(p).all() for p in module.parameters())
    other = build_mixer(mixer, DIM)
    other.load_state_dict(module.state_dict(), strict=True)
    arguments = inputs(module, 5, 6)
    torch.testing.assert_close(other(*arguments), module(*arguments), rtol=0, atol=0)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="a mixer 'pool' is already registered"):
        register_mixer("pool")(NoPropagation)


def test_heat_with_constant_diffusivity_is_gaussian() -> None:
    x = torch.randn(2, 9, 7, 4, dtype=torch.float64)
    k = torch.full((9, 7, 4), 1.3, dtype=torch.float64)
    torch.testing.assert_close(heat_conduct(x, k), tail_propagate(x, (1.3,), orders=(2.0,)), rtol=0, atol=1e-12)


def test_wave_solves_its_equation() -> None:
    """u'' + a u' + v^2 rho u = 0 with u(0) = u'(0) = X^, for each coefficient: checked by differences in time."""
    h, w, a, v, dt = 6, 5, 0.3, 1.1, 1e-3
    x = torch.randn(1, h, w, 1, dtype=torch.float64)

    def coefficients(t: float) -> torch.Tensor:
        time = torch.full((h, w, 1), t, dtype=torch.float64)
        y = wave_propagate(x, time, torch.tensor([v]).double(), torch.tensor([a]).double())
        return torch.from_numpy(scipy.fft.dctn(y.numpy(), type=2, norm="ortho", axes=(1, 2)))[0, ..., 0]

    start = torch.from_numpy(scipy.fft.dctn(x.numpy(), type=2, norm="ortho", axes=(1, 2)))[0, ..., 0]
    before, now, after = (coefficients(1.0 + s * dt) for s in (-1, 0, 1))
    rho = (math.pi * torch.arange(h) / h)[:, None] ** 2 + (math.pi * torch.arange(w) / w) ** 2
    residual = (after - 2 * now + before) / dt**2 + a * (after - before) / (2 * dt) + v**2 * rho * now
    moving = v**2 * rho > (a / 2) ** 2  # the formula is for underdamped coefficients
    assert residual[moving].abs().max() < 1e-4
    torch.testing.assert_close(coefficients(0.0), start)
    torch.testing.assert_close(((coefficients(dt) - start) / dt)[moving], start[moving], rtol=2e-2, atol=2e-2)


def test_attention_against_plain_softmax() -> None:
    module, x = SelfAttention(64, head_dim=16), torch.randn(2, 3, 5, 64)
    q, k, v = module.qkv(x.reshape(2, 15, 64)).chunk(3, -1)
    heads = []
    for h in range(4):
        part = slice(16 * h, 16 * (h + 1))
        scores = q[..., part] @ k[..., part].mT / math.sqrt(16)
        heads.append(scores.softmax(-1) @ v[..., part])
    torch.testing.assert_close(module(x), torch.cat(heads, -1).reshape(2, 3, 5, 64), rtol=1e-4, atol=1e-5)


def test_attention_rejects_indivisible_widths() -> None:
    with pytest.raises(ValueError, match="48 channels and head_dim 32"):
        SelfAttention(48)


@pytest.mark.parametrize("rival", [HeatConduction, WavePropagation])
def test_mixers_with_embedding_have_all_gradients(rival: type[torch.nn.Module]) -> None:
    module = rival(8)
    embedding = torch.randn(6, 5, 8, requires_grad=True)
    x = torch.randn(2, 6, 5, 8, requires_grad=True)
    module(x, embedding).square().sum().backward()
    for tensor in (x, embedding, *module.parameters()):
        assert tensor.grad is not None
        assert torch.isfinite(tensor.grad).all()


def test_identity_mixer_passes_no_information() -> None:
    x = torch.randn(1, 4, 4, 8)
    assert NoPropagation(8)(x) is x


def test_resampled_embedding_keeps_its_corners() -> None:
    embedding = torch.arange(5.0)[:, None, None].expand(5, 3, 2)
    y = resample_embedding(embedding, torch.zeros(1, 9, 3, 2))
    torch.testing.assert_close(y[:, 0, 0], torch.linspace(0, 4, 9))
    assert resample_embedding(embedding, torch.zeros(1, 5, 3, 2)) is embedding
