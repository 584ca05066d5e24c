"""Cosine transforms of one axis by FFT, for long axes that do not split.

Shapes: any, with the axis in any place.

A product with the cosine matrix costs N multiply-adds for every value, an FFT about log N. The FFT is Makhoul's (1980): a
DCT-II of N points is a real FFT of the same points in the order 0, 2, 4, ..., 3, 1, multiplied by a phase of a quarter sample.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from .capture import full_dtype

__all__ = ["dct_fft", "idct_fft"]


def dct_fft(x: Tensor, dim: int) -> Tensor:
    """Orthonormal DCT-II along one axis."""
    n, kind = x.shape[dim], full_dtype(x.dtype)
    order, _, phase = _constants(n, kind, x.device)
    spectrum = torch.fft.rfft(x.to(kind).index_select(dim, order), dim=dim)  # k = 0 .. n/2
    rotated = spectrum * _along(phase, x.ndim, dim)  # X_k - i X_(n-k)
    upper = rotated.imag.narrow(dim, 1, (n - 1) // 2).flip(dim).neg()
    return torch.cat([rotated.real, upper], dim).to(x.dtype)


def idct_fft(x: Tensor, dim: int) -> Tensor:
    """Inverse of `dct_fft`."""
    n, kind = x.shape[dim], full_dtype(x.dtype)
    _, back, phase = _constants(n, kind, x.device)
    x_wide = x.to(kind)
    mirrored = x_wide.narrow(dim, n - n // 2, n // 2).flip(dim)  # X_(n-k), k = 1 .. n/2
    zero = torch.zeros_like(x_wide.narrow(dim, 0, 1))
    rotated = torch.complex(x_wide.narrow(dim, 0, n // 2 + 1), torch.cat([zero, mirrored], dim).neg())
    values = torch.fft.irfft(rotated / _along(phase, x.ndim, dim), n, dim=dim)
    return values.index_select(dim, back).to(x.dtype)


def _along(values: Tensor, ndim: int, dim: int) -> Tensor:
    """A vector reshaped to broadcast along one axis of a map."""
    shape = [1] * ndim
    shape[dim] = -1
    return values.view(shape)


@lru_cache(64)
def _constants(n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Makhoul's order of n points, its inverse, and the phases c_k exp(-i pi k / (2n)) for k = 0 .. n/2."""
    with torch.inference_mode(False), torch.no_grad():  # inference tensors could not be used in a later training step
        order = torch.cat([torch.arange(0, n, 2), torch.arange(1, n, 2).flip(0)])
        k = torch.arange(n // 2 + 1, dtype=torch.float64)
        length = torch.full_like(k, math.sqrt(2 / n))
        length[0] = math.sqrt(1 / n)
        phase = torch.polar(length, -math.pi / 2 * k / n)
        wide = torch.complex128 if dtype == torch.float64 else torch.complex64
        return order.to(device), torch.argsort(order).to(device), phase.to(device, wide)
