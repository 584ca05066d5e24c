"""Mixers in the Fourier domain: GFNet's learned filter, and AFNO's MLP over the channels of every frequency.

Shapes: B batch, H height, W width, C channels, F = W//2 + 1 frequencies of a real map along its width; h, w is the size that
a filter is stored for; N blocks of D channels.

A Fourier transform continues a map periodically, where the cosine transform of the other mixers mirrors it. Everything is
computed in at least float32, because the FFT knows neither bfloat16 nor every size in float16.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from .._checks import check_at_least
from ..operator import at_least_float32
from .registry import register_mixer

__all__ = ["FourierMLP", "GlobalFilter", "fourier_mlp", "global_filter", "resample_filter"]

MAX_BLOCKS: Final = 8  # AFNO's number of blocks


def global_filter(x: Tensor, weight: Tensor, map_size: tuple[int, int], spacing: float = 1.0) -> Tensor:
    """IFFT(K * FFT(X)) (GFNet): a circular convolution whose kernel is as large as the map.

    Args:
        x: Channels-last map, (B, H, W, C).
        weight: Real and imaginary parts of the filter K at the frequencies of a map of `map_size`, (h, w//2 + 1, C, 2).
        map_size: (h, w); on maps of another size the filter is resampled.
        spacing: Distance of neighbouring positions; below 1 on a finer map.
    """
    spectrum = _fft(x)  # (B, H, F, C)
    filter_ = resample_filter(weight, map_size, (x.shape[1], x.shape[2]), spacing)  # (H, F, C)
    return _ifft(spectrum * filter_, x)


def resample_filter(weight: Tensor, map_size: tuple[int, int], size: tuple[int, int], spacing: float = 1.0) -> Tensor:
    """The complex filter (H, W//2 + 1, C) at the frequencies of a map of another size, from one that is stored for `map_size`.

    Bilinear between the stored frequencies, in cycles per unit of length: the kernel keeps its reach in positions, and the
    mean of a map its factor. The spectrum of a sampled kernel is periodic, so negative frequencies need no special care, and
    frequencies that only a finer map has (spacing 1/2, 1/3, ...) repeat it, which dilates the kernel.
    """
    stored = torch.view_as_complex(at_least_float32(weight).contiguous())  # (h, w//2 + 1, C)
    if size == map_size and spacing == 1:
        return stored
    dilation = round(1 / spacing)
    kernel = torch.fft.irfft2(stored, s=map_size, dim=(0, 1))
    spectrum = torch.fft.fft2(kernel, dim=(0, 1))  # (h, w, C), with the half that a real FFT leaves out
    rows = _at_frequencies(spectrum, 0, size[0], size[0], dilation)  # (H, w, C)
    return _at_frequencies(rows, 1, size[1] // 2 + 1, size[1], dilation)  # (H, F, C)


def _at_frequencies(spectrum: Tensor, dim: int, count: int, size: int, dilation: int) -> Tensor:
    """Linear interpolation of a periodic spectrum at the first `count` frequencies of an axis with `size` positions."""
    stored = spectrum.shape[dim]
    place = torch.arange(count, device=spectrum.device) * (stored * dilation)  # in units of 1/size: integers, so it is exact
    below = torch.remainder(torch.div(place, size, rounding_mode="floor"), stored)
    share = (torch.remainder(place, size) / size).to(spectrum.real.dtype)  # of the next stored frequency
    low = spectrum.index_select(dim, below)
    high = spectrum.index_select(dim, torch.remainder(below + 1, stored))
    return low + (high - low) * (share[:, None, None] if dim == 0 else share[:, None])


def fourier_mlp(x: Tensor, weights: tuple[Tensor, Tensor], biases: tuple[Tensor, Tensor], threshold: float) -> Tensor:
    """X + IFFT(shrink(W_2 ReLU(W_1 FFT(X) + b_1) + b_2)) (AFNO), with complex numbers and the same MLP at every frequency.

    ReLU and soft shrinkage, sign(z) max(|z| - threshold, 0), treat real and imaginary parts as two numbers.

    Args:
        x: Channels-last map, (B, H, W, C) with C = N D.
        weights: W_1 and W_2, each real and imaginary, (2, N, D, D): a matrix for each block of channels.
        biases: b_1 and b_2, each (2, N, D).
        threshold: Values below it become zero, which makes the spectrum sparse.
    """
    with _without_autocast(x):
        spectrum = _fft(x)  # (B, H, F, C)
        num_blocks, block = weights[0].shape[1:3]
        parts = torch.stack([spectrum.real, spectrum.imag], dim=-2).unflatten(-1, (num_blocks, block))  # (B, H, F, 2, N, D)
        z = parts.flatten(0, 2).permute(2, 0, 1, 3).flatten(2)  # (N, BHF, 2D)
        z = F.relu(_complex_linear(z, weights[0], biases[0]))
        z = F.softshrink(_complex_linear(z, weights[1], biases[1]), threshold)
        real, imag = z.permute(1, 0, 2).unflatten(-1, (2, block)).unbind(-2)  # (BHF, N, D)
        mixed = torch.complex(real.reshape(spectrum.shape), imag.reshape(spectrum.shape))
        return x + _ifft(mixed, x)


def _complex_linear(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Complex linear layer of each block as a real one, (N, .., 2D) -> (N, .., 2D): (r, i) times ((W_r, W_i), (-W_i, W_r))."""
    w_r, w_i = at_least_float32(weight).to(z.dtype).unbind(0)  # (N, D, D)
    matrix = torch.cat([torch.cat([w_r, w_i], dim=-1), torch.cat([-w_i, w_r], dim=-1)], dim=-2)  # (N, 2D, 2D)
    shift = torch.cat(at_least_float32(bias).to(z.dtype).unbind(0), dim=-1)  # (N, 2D)
    return torch.baddbmm(shift[:, None], z, matrix)


def _fft(x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W//2 + 1, C), complex
    return torch.fft.rfft2(at_least_float32(x), dim=(1, 2), norm="ortho")


def _ifft(spectrum: Tensor, like: Tensor) -> Tensor:
    """A map of the size and dtype of `like`."""
    return torch.fft.irfft2(spectrum, s=(like.shape[1], like.shape[2]), dim=(1, 2), norm="ortho").to(like.dtype)


def _without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    kind = x.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)  # meta has no autocast


for _leaf in ("global_filter", "fourier_mlp"):  # leaf functions for symbolic tracing, as in `operator`
    torch.fx.wrap(_leaf)


@register_mixer("gfnet")
class GlobalFilter(nn.Module):
    """GFNet's learned filter, a complex number for each frequency and channel: see `global_filter`.

    Args:
        dim: Channels C.
        map_size: (h, w), the size of the map that the filter is stored for.
    """

    needs_frequency_embedding: Final = False
    needs_map_size: Final = True
    not_matrices: Final = ("weight",)  # a table over frequencies
    spacing: float = 1.0

    def __init__(
        self,
        dim: int,
        map_size: tuple[int, int] = (14, 14),
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        h, w = map_size
        check_at_least("each side of map_size", min(h, w), 1)
        self.map_size = (h, w)
        self.weight = nn.Parameter(torch.empty(h, w // 2 + 1, dim, 2, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        return global_filter(x, self.weight, self.map_size, self.spacing)

    def extra_repr(self) -> str:
        return f"dim={self.weight.shape[2]}, map_size={self.map_size}"


@register_mixer("afno")
class FourierMLP(nn.Module):
    """AFNO's mixer: an MLP over the channels of every frequency, in blocks of channels: see `fourier_mlp`.

    It has no length of its own, so the spacing of a map does not matter to it.

    Args:
        dim: Channels C.
        num_blocks: Blocks of channels, a divisor of `dim`; None for the largest one up to AFNO's 8.
        threshold: Threshold of the soft shrinkage.
    """

    needs_frequency_embedding: Final = False

    def __init__(
        self,
        dim: int,
        num_blocks: int | None = None,
        threshold: float = 0.01,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        check_at_least("threshold", threshold, 0)
        if num_blocks is None:
            num_blocks = next(n for n in range(MAX_BLOCKS, 0, -1) if dim % n == 0)
        if num_blocks < 1 or dim % num_blocks:
            raise ValueError(f"afno needs channels divisible by num_blocks, got {dim} channels and {num_blocks} blocks")
        self.threshold, block = threshold, dim // num_blocks
        self.w1 = nn.Parameter(torch.empty(2, num_blocks, block, block, **dd))
        self.b1 = nn.Parameter(torch.empty(2, num_blocks, block, **dd))
        self.w2 = nn.Parameter(torch.empty(2, num_blocks, block, block, **dd))
        self.b2 = nn.Parameter(torch.empty(2, num_blocks, block, **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        return fourier_mlp(x, (self.w1, self.w2), (self.b1, self.b2), self.threshold)

    def extra_repr(self) -> str:
        _, num_blocks, block, _ = self.w1.shape
        return f"dim={num_blocks * block}, num_blocks={num_blocks}, threshold={self.threshold}"
