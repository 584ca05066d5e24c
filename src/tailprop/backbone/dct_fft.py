"""Cosine transforms of large maps: by FFT, and on a CPU in strips that fit its caches.

Shapes: as in `spectral`; strips are a few rows (.., h, W, C) or a few columns (.., H, w, C) of a map.

A product with the cosine matrix costs N multiply-adds for every value, an FFT about log N. Below `LARGE` the product is
faster all the same, and it can be compiled, exported and run in bfloat16; so `spectral` comes here only with larger maps of an
eager run. The FFT is Makhoul's (1980): a DCT-II of N points is a real FFT of the same points in the order 0, 2, 4, ..., 3, 1,
turned by a quarter sample.

At a megapixel the arithmetic is not what takes the time: fresh memory is. So without gradients a filter on a CPU keeps one copy
of the map, and every strip of it is transformed, damped and transformed back while it is in the cache. The response is made
for one strip at a time too, and never exists as a whole.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

__all__ = ["LARGE", "dct_fft", "filter_in_strips", "idct_fft"]

LARGE: Final = 256  # points; where FFT and product take the same time on a CPU
STRIP_BYTES: Final = 4 << 20

Transforms = tuple[Callable[[Tensor, int], Tensor], Callable[[Tensor, int], Tensor]]


def dct_fft(x: Tensor, dim: int) -> Tensor:
    """Orthonormal DCT-II along one axis."""
    n, kind = x.shape[dim], torch.promote_types(x.dtype, torch.float32)
    order, _, turn = _constants(n, kind, x.device)
    spectrum = torch.fft.rfft(x.to(kind).index_select(dim, order), dim=dim)  # k = 0 .. n/2
    turned = spectrum * _along(turn, x.ndim, dim)  # X_k - i X_(n-k)
    upper = turned.imag.narrow(dim, 1, (n - 1) // 2).flip(dim).neg()
    return torch.cat([turned.real, upper], dim).to(x.dtype)


def idct_fft(x: Tensor, dim: int) -> Tensor:
    """Inverse of `dct_fft`."""
    n, kind = x.shape[dim], torch.promote_types(x.dtype, torch.float32)
    _, back, turn = _constants(n, kind, x.device)
    x_wide = x.to(kind)
    mirrored = x_wide.narrow(dim, n - n // 2, n // 2).flip(dim)  # X_(n-k), k = 1 .. n/2
    nothing = torch.zeros_like(x_wide.narrow(dim, 0, 1))
    turned = torch.complex(x_wide.narrow(dim, 0, n // 2 + 1), torch.cat([nothing, mirrored], dim).neg())
    values = torch.fft.irfft(turned / _along(turn, x.ndim, dim), n, dim=dim)
    return values.index_select(dim, back).to(x.dtype)


def filter_in_strips(x: Tensor, respond: Callable[[slice], Tensor], transforms: Transforms) -> Tensor:
    """IDCT(response * DCT(X)) in strips, with one copy of the map; without gradients.

    Args:
        x: Map, (B, H, W, C).
        respond: Makes the response at some columns, broadcastable to (B, H, columns, C).
        transforms: The transform and its inverse along an axis, chosen by size.
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
    """A vector laid along one axis of a map."""
    shape = [1] * ndim
    shape[dim] = -1
    return values.view(shape)


@lru_cache(64)
def _constants(n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Makhoul's order of n points, the way back, and c_k exp(-i pi k / (2n)) for k = 0 .. n/2."""
    with torch.inference_mode(False), torch.no_grad():  # else a later training step could not use them
        order = torch.cat([torch.arange(0, n, 2), torch.arange(1, n, 2).flip(0)])
        k = torch.arange(n // 2 + 1, dtype=torch.float64)
        length = torch.full_like(k, math.sqrt(2 / n))
        length[0] = math.sqrt(1 / n)
        turn = torch.polar(length, -math.pi / 2 * k / n)
        wide = torch.complex128 if dtype == torch.float64 else torch.complex64
        return order.to(device), torch.argsort(order).to(device), turn.to(device, wide)
