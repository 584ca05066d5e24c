"""Cosine transforms as matrix products that autograd records: for captured graphs, half precision, torch.func and GPUs.

Shapes: B batch, n_1 .. n_d spatial axes, C channels.

On a channels-last map no transpose is needed: the last axis is a batch of (n, C) matrices and any other a batch of (n, rest).
The transform takes the last axis first, because that product accepts a strided input (half of a wider tensor) without a copy;
the inverse takes it last, so that its result is contiguous.

In eager mode an axis of more than `LARGE` points is transformed by FFT.
"""

import math
from functools import lru_cache
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from .capture import shared_in_graph
from .dct_fft import dct_fft, idct_fft
from .response import build_dtype, is_plain

__all__ = ["LARGE", "dct_basis", "transform"]

LARGE: Final = 256  # points; a product with a longer axis would dominate the cost of the network
_CACHE_SIZE: Final = 256  # cached bases; bounded, because a detector sees images of every shape


def transform(x: Tensor, num_axes: int, inverse: bool = False) -> Tensor:
    """DCT or inverse DCT over the last axes before the channels, frequencies ascending."""
    dims = range(x.ndim - 1 - num_axes, x.ndim - 1)
    for dim in dims if inverse else reversed(dims):
        x = _along(x, dim, inverse)
    return x


def dct_basis(n: int, like: Tensor) -> Tensor:
    """The orthonormal DCT-II matrix D, (n, n), a row for each frequency, in the dtype and on the device of `like`.

    D[m, i] = c_m cos(pi m (2i + 1) / (2n)) with c_0 = sqrt(1/n) and c_m = sqrt(2/n).
    """
    if is_plain(like):
        return _cached_basis(n, like.dtype, like.device)
    return shared_in_graph(lambda: _build_basis(n, like.device).to(like.dtype), "basis", n, like.dtype, like.device)


def _along(x: Tensor, dim: int, inverse: bool) -> Tensor:
    n = x.shape[dim]
    # Meta tensors take the product, whose multiply-adds can be counted.
    if is_plain(x) and x.device.type != "meta" and n > LARGE:
        return idct_fft(x, dim) if inverse else dct_fft(x, dim)
    basis = dct_basis(n, x).transpose(0, 1) if inverse else dct_basis(n, x)
    if torch.compiler.is_exporting():
        return _mix_channels(basis, x, dim)
    # bmm with an expanded basis, not matmul: matmul folds the batch by transposing x, which copies it twice.
    batch = math.prod(x.shape[:dim])
    return torch.bmm(basis.expand(batch, n, n), x.reshape(batch, n, -1)).view(x.shape)


def _mix_channels(basis: Tensor, x: Tensor, dim: int) -> Tensor:
    """The product as a convolution of size 1 that treats the axis as channels: (B, n, ..).

    Slower than bmm, but it merges no axes: torch.export cannot prove that merged axes of dynamic size can be split again.
    """
    convolve = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.ndim]
    kernel = basis[(...,) + (None,) * (x.ndim - 2)]
    return convolve(x, kernel) if dim == 1 else convolve(x.transpose(1, dim), kernel).transpose(1, dim)


@lru_cache(_CACHE_SIZE)
def _cached_basis(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():  # an inference tensor could not be used in a later training step
        return _build_basis(n, device).to(dtype)


def _build_basis(n: int, device: torch.device) -> Tensor:
    # Integers stored as floats: inductor would treat integer arithmetic as index expressions and simplify them for minutes.
    index = torch.arange(n, device=device, dtype=build_dtype(device))
    phase = torch.remainder(index[:, None] * (2 * index + 1), 4 * n)  # exact, and so is the angle, at any size
    cosine = torch.cos(phase * (math.pi / 2) / n)  # (m, i)
    # Rows are normalised by their own norm: sqrt(2/n) in Python would become a constant of an exported graph.
    return cosine / torch.linalg.vector_norm(cosine, dim=1, keepdim=True)
