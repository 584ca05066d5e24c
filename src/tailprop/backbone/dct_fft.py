"""Cosine transforms of large maps: by FFT, and on a CPU in strips that fit its caches.

Shapes: as in `dct`; strips are a few rows (.., h, W, C) or a few columns (.., H, w, C) of a map.

A product with the cosine matrix costs N multiply-adds for every value, an FFT about log N. Up to `LARGE` the product is still
faster, and it can be compiled, exported and run in bfloat16; so `dct` uses this module only for larger maps in eager mode.
The FFT is Makhoul's (1980): a DCT-II of N points is a real FFT of the same points in the order 0, 2, 4, ..., 3, 1, multiplied
by a phase of a quarter sample.

At a megapixel, memory allocation takes more time than arithmetic. So without gradients a filter on a CPU uses one copy of the
map, and every strip of it is transformed, filtered and transformed back while it is in the cache. The response, too, is
computed strip by strip and is never stored as a whole.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

__all__ = ["LARGE", "dct_fft", "filter_in_strips", "idct_fft"]

LARGE: Final = 256  # points; FFT and product take the same time on a CPU here
STRIP_BYTES: Final = 4 << 20

Transforms = tuple[Callable[[Tensor, int], Tensor], Callable[[Tensor, int], Tensor]]


def dct_fft(x: Tensor, dim: int) -> Tensor:
    """Orthonormal DCT-II along one axis."""
    n, kind = x.shape[dim], torch.promote_types(x.dtype, torch.float32)
    order, _, phase = _constants(n, kind, x.device)
    spectrum = torch.fft.rfft(x.to(kind).index_select(dim, order), dim=dim)  # k = 0 .. n/2
    rotated = spectrum * _along(phase, x.ndim, dim)  # X_k - i X_(n-k)
    upper = rotated.imag.narrow(dim, 1, (n - 1) // 2).flip(dim).neg()
    return torch.cat([rotated.real, upper], dim).to(x.dtype)


def idct_fft(x: Tensor, dim: int) -> Tensor:
    """Inverse of `dct_fft`."""
    n, kind = x.shape[dim], torch.promote_types(x.dtype, torch.float32)
    _, back, phase = _constants(n, kind, x.device)
    x_wide = x.to(kind)
    mirrored = x_wide.narrow(dim, n - n // 2, n // 2).flip(dim)  # X_(n-k), k = 1 .. n/2
    zero = torch.zeros_like(x_wide.narrow(dim, 0, 1))
    rotated = torch.complex(x_wide.narrow(dim, 0, n // 2 + 1), torch.cat([zero, mirrored], dim).neg())
    values = torch.fft.irfft(rotated / _along(phase, x.ndim, dim), n, dim=dim)
    return values.index_select(dim, back).to(x.dtype)


def filter_in_strips(x: Tensor, respond: Callable[[slice], Tensor], transforms: Transforms) -> Tensor:
    """IDCT(response * DCT(X)) in strips, with one copy of the map; without gradients.

    Args:
        x: Map, (B, H, W, C).
        respond: Computes the response for a slice of columns, broadcastable to (B, H, columns, C).
        transforms: The transform along an axis, and its inverse.
    """
    forward, backward = transforms
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for rows in _strips(x, axis=1):
        y[:, rows] = forward(x[:, rows], 2)
    for columns in _strips(x, axis=2):
        y[:, :, columns] = backward(forward(y[:, :, columns], 1) * respond(columns).to(x.dtype), 1)
    for rows in _strips(x, axis=1):
        y[:, rows] = backward(y[:, rows], 2)
    return y


def _strips(x: Tensor, axis: int) -> list[slice]:
    """Slices of an axis, each of about `STRIP_BYTES`."""
    count = x.shape[axis]
    each = max(1, STRIP_BYTES * count // max(1, x.numel() * 4))
    return [slice(first, min(first + each, count)) for first in range(0, count, each)]


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
