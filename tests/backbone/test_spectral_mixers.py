"""GFNet's filter and AFNO's MLP against slow references."""

import cmath
import math

import pytest
import torch
from torch import Tensor

from tailprop import FourierMLP, GlobalFilter
from tailprop.backbone.mixers import build_mixer, global_filter, resample_filter
from tailprop.engine.config import OptimConfig
from tailprop.engine.optim import build_optimizer
from tests.backbone.test_model import tiny_net

SIZES = [(1, 1), (1, 2), (2, 1), (3, 5), (4, 6), (5, 4)]


def kernel_of(module: GlobalFilter) -> Tensor:
    """The kernel whose Fourier transform is the filter, (h, w, C), as a sum over all frequencies."""
    h, w = module.map_size
    weight = torch.view_as_complex(module.weight.detach().double())
    kernel = torch.zeros(h, w, weight.shape[2], dtype=torch.float64)
    for m in range(h):
        for n in range(w // 2 + 1):
            twice = 1 if n == 0 or 2 * n == w else 2  # the frequency -n is not stored
            for i in range(h):
                for j in range(w):
                    wave = cmath.exp(2j * math.pi * (m * i / h + n * j / w))
                    kernel[i, j] += twice * (weight[m, n] * wave).real / (h * w)
    return kernel


def circular_convolution(x: Tensor, kernel: Tensor, dilation: int = 1) -> Tensor:
    y = torch.zeros_like(x)
    for i in range(kernel.shape[0]):
        for j in range(kernel.shape[1]):
            y += kernel[i, j] * x.roll((i * dilation, j * dilation), (1, 2))
    return y


@pytest.mark.parametrize(("h", "w"), SIZES)
def test_global_filter_is_a_circular_convolution(h: int, w: int) -> None:
    module, x = GlobalFilter(3, (h, w), dtype=torch.float64), torch.randn(2, h, w, 3, dtype=torch.float64)
    torch.testing.assert_close(module(x), circular_convolution(x, kernel_of(module)), rtol=0, atol=1e-12)


def test_global_filter_that_shifts_the_map() -> None:
    """The filter exp(-2 pi i m / h) moves every row down by one."""
    module, x = GlobalFilter(1, (4, 3)), torch.arange(12.0).view(1, 4, 3, 1)
    with torch.no_grad():
        for m, (real, imag) in enumerate([(1.0, 0.0), (0.0, -1.0), (-1.0, 0.0), (0.0, 1.0)]):
            module.weight[m, :, 0] = torch.tensor([real, imag])
    expected = torch.tensor([[9.0, 10.0, 11.0], [0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]])
    torch.testing.assert_close(module(x)[0, :, :, 0], expected)


@pytest.mark.parametrize("map_size", SIZES)
@pytest.mark.parametrize("size", [*SIZES, (7, 9), (8, 12)])
def test_resampled_filter(map_size: tuple[int, int], size: tuple[int, int]) -> None:
    weight = torch.randn(map_size[0], map_size[1] // 2 + 1, 2, 2, dtype=torch.float64)
    stored, resampled = torch.view_as_complex(weight), resample_filter(weight, map_size, size)
    assert resampled.shape == (size[0], size[1] // 2 + 1, 2)
    torch.testing.assert_close(resampled[0, 0].real, stored[0, 0].real)  # the mean of a map keeps its factor
    if size == map_size:
        assert torch.equal(resampled, stored)


def test_resampled_filter_keeps_frequencies_in_cycles_per_position() -> None:
    """A real filter |frequency| is linear in between, for negative frequencies, too."""
    rows = torch.tensor([0.0, 0.25, 0.5, 0.25])[:, None] + torch.tensor([0.0, 0.25, 0.5])  # 4x4 map
    weight = torch.stack([rows, torch.zeros_like(rows)], dim=-1)[:, :, None]  # (h, F, C, 2)
    resampled = resample_filter(weight, (4, 4), (8, 6))[..., 0]
    expected = torch.fft.fftfreq(8).abs()[:, None] + torch.fft.rfftfreq(6)
    torch.testing.assert_close(resampled.real, expected)
    torch.testing.assert_close(resampled.imag, torch.zeros_like(expected))


@pytest.mark.parametrize("dilation", [2, 3])
def test_global_filter_on_a_finer_map_is_dilated(dilation: int) -> None:
    module = GlobalFilter(2, (3, 4), dtype=torch.float64)
    x = torch.randn(1, 3 * dilation, 4 * dilation, 2, dtype=torch.float64)
    y = global_filter(x, module.weight, (3, 4), 1 / dilation)
    torch.testing.assert_close(y, circular_convolution(x, kernel_of(module), dilation), rtol=0, atol=1e-12)


def test_map_size_reaches_the_filter() -> None:
    model = tiny_net(mixer="gfnet", img_size=(96, 65))
    sizes = [stage.layers[0].block.mixer.map_size for stage in model.stages]
    assert sizes == [(24, 17), (12, 9), (6, 5), (3, 3)]
    dense = tiny_net(mixer="gfnet", img_size=(96, 65), output_stride=8)
    dense.load_state_dict(model.state_dict())  # filters are stored for the usual maps
    assert build_mixer("gfnet", 8).map_size == (14, 14)
    assert build_mixer("gfnet", 8, (3, 3), map_size=(5, 4)).map_size == (5, 4)
    with pytest.raises(ValueError, match="each side of map_size must be at least 1, got 0"):
        GlobalFilter(8, (0, 3))


def test_filters_are_no_matrices_for_muon() -> None:
    model = tiny_net(mixer="gfnet", img_size=224)
    groups = build_optimizer(model, OptimConfig(name="muon")).param_groups
    (matrices,) = ({id(p) for p in group["params"]} for group in groups if group["matrices"])
    filters = {id(m.weight) for m in model.modules() if isinstance(m, GlobalFilter)}
    assert matrices
    assert not matrices & filters


def fourier_mlp_reference(module: FourierMLP, x: Tensor) -> Tensor:
    """One frequency and one block at a time, in complex numbers."""
    w1, b1, w2, b2 = (torch.complex(*p.detach().unbind(0)) for p in (module.w1, module.b1, module.w2, module.b2))
    spectrum = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
    mixed, block = torch.zeros_like(spectrum), w1.shape[-1]
    for b, m, n in torch.cartesian_prod(*(torch.arange(s) for s in spectrum.shape[:3])).tolist():
        for k in range(len(w1)):
            part = slice(k * block, (k + 1) * block)
            hidden = spectrum[b, m, n, part] @ w1[k] + b1[k]
            hidden = torch.complex(hidden.real.clamp_min(0), hidden.imag.clamp_min(0))
            out = torch.view_as_real(hidden @ w2[k] + b2[k])
            mixed[b, m, n, part] = torch.view_as_complex(out.sign() * (out.abs() - module.threshold).clamp_min(0))
    return x + torch.fft.irfft2(mixed, s=x.shape[1:3], dim=(1, 2), norm="ortho")


@pytest.mark.parametrize(("h", "w"), SIZES)
def test_fourier_mlp_against_a_loop(h: int, w: int) -> None:
    module, x = FourierMLP(12, 3, dtype=torch.float64), torch.randn(2, h, w, 12, dtype=torch.float64)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    torch.testing.assert_close(module(x), fourier_mlp_reference(module, x), rtol=0, atol=1e-12)


def test_fourier_mlp_shrinks_small_values_to_zero() -> None:
    x = torch.randn(1, 4, 4, 8)
    assert torch.equal(FourierMLP(8, threshold=10.0)(x), x)


@pytest.mark.parametrize(("dim", "num_blocks"), [(96, 8), (180, 6), (7, 7), (11, 1), (10, 5)])
def test_number_of_blocks(dim: int, num_blocks: int) -> None:
    assert FourierMLP(dim).w1.shape == (2, num_blocks, dim // num_blocks, dim // num_blocks)


@pytest.mark.parametrize("num_blocks", [0, 5])
def test_indivisible_blocks_are_rejected(num_blocks: int) -> None:
    with pytest.raises(ValueError, match=f"12 channels and {num_blocks} blocks"):
        FourierMLP(12, num_blocks)


def test_gradients() -> None:
    x = torch.randn(1, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    for module in (GlobalFilter(4, (2, 5)), FourierMLP(4, 2)):
        module = module.double()
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        names, values = zip(*module.named_parameters(), strict=True)

        def run(x: Tensor, *values: Tensor, module: torch.nn.Module = module, names: tuple[str, ...] = names) -> Tensor:
            return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

        assert torch.autograd.gradcheck(run, (x, *values))
