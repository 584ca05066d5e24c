"""Orthonormal 2-D cosine transforms of channels-last maps, and their frequency grid.

Shapes: B batch (any number of leading axes), H height, W width, C channels; m, n index frequencies.

The paper (Appendix A) writes the pair as X^ = D_H X D_W^T and X = D_H^T X^ D_W for each channel. On a channels-last map both
factors are plain matrix products and no transpose is ever needed: along W the map is a batch of (W, C) matrices, along H a
batch of (H, W*C) matrices. `dct2` transforms width first because that product accepts a strided input (half of a wider tensor)
without a copy; `idct2` runs in the opposite order, so its result is contiguous.

In eager mode an axis longer than `dct_fft.LARGE` is transformed by FFT instead: the product costs H + W multiply-adds for each
value, which on a megapixel map would dominate the cost of the network.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from .dct_fft import LARGE, dct_fft, filter_in_strips, idct_fft

__all__ = ["MAX_GAIN", "dct2", "dct_basis", "frequency_grid", "idct2", "normalizing_gain", "spectral_filter"]

MAX_GAIN = 5e4  # of a normalized channel, below the largest float16; a few points that are spread over a map need a gain of 1e4
_CACHE_SIZE = 256  # cached bases; bounded, because a detector sees images of every shape
_CACHED_GRIDS = 64  # a grid belongs to a pair of sides, so there are many more of them
_CACHED_POINTS = 1 << 18  # of a grid; a larger one takes milliseconds to build beside seconds for its image, and megabytes


def dct2(x: Tensor) -> Tensor:
    """Orthonormal DCT-II over height and width of a channels-last map.

    >>> x = torch.randn(2, 7, 9, 3)
    >>> torch.allclose(idct2(dct2(x)), x, atol=1e-5)
    True
    """
    _check_spatial(x)
    return _dct(_dct(x, -2), -3)  # (B, H, W, C)


def idct2(x: Tensor) -> Tensor:
    """Inverse of `dct2` (an orthonormal DCT-III over height and width)."""
    _check_spatial(x)
    return _idct(_idct(x, -3), -2)  # (B, H, W, C)


def spectral_filter(x: Tensor, response: Tensor | Callable[[slice], Tensor], normalized: Tensor | None = None) -> Tensor:
    """IDCT(response * DCT(X)) with one transform pair; the response broadcasts to (B, H, W, C) and takes the dtype of x.

    The response may also be a function that computes it for a slice of frequency columns, broadcastable to (B, H, columns, C).
    For a large map it is called for a few columns at a time, so that the whole response is never in memory.

    Channels where `normalized`, (C,), is 1 get a mean square of 1 over the map of every image; the others stay as they are.
    """
    if callable(response):
        if x.ndim == 4 and _is_large(x) and x.device.type == "cpu" and not torch.is_grad_enabled():
            _check_spatial(x)
            y = filter_in_strips(x, response, (_dct, _idct))
            return y if normalized is None else y.mul_(normalizing_gain(y, normalized))
        response = response(slice(None))
    coefficients = dct2(x) * response.to(x.dtype)
    if normalized is not None:  # over frequencies as over positions (Parseval), where half precision would lose weak channels
        coefficients = coefficients * normalizing_gain(coefficients, normalized)
    return idct2(coefficients)


def normalizing_gain(x: Tensor, normalized: Tensor) -> Tensor:
    """A factor for each channel of each map, (B, 1, 1, C): one over its root mean square where `normalized` is 1, else 1.

    It is at most `MAX_GAIN`: 1 / sqrt(mean + eps) with eps = 1 / MAX_GAIN^2, but written without eps, because ONNX exporters
    drop the addition of so small a number.
    """
    mean_square = x.to(torch.promote_types(x.dtype, torch.float32)).square().mean((-3, -2), keepdim=True)
    inverse_rms = MAX_GAIN * torch.rsqrt(1 + MAX_GAIN**2 * mean_square)
    return (1 + normalized * (inverse_rms - 1)).to(x.dtype)


def dct_basis(n: int, like: Tensor) -> Tensor:
    """The orthonormal DCT-II matrix D, (n, n), a row for each frequency, in the dtype and on the device of `like`.

    D[m, i] = c_m cos(pi m (2i + 1) / (2n)) with c_0 = sqrt(1/n) and c_m = sqrt(2/n).
    """
    if _is_plain(like):
        return _cached_basis(n, like.dtype, like.device)
    return _build_basis(n, like.device).to(like.dtype)


def frequency_grid(h: int, w: int, like: Tensor, spacing: float = 1.0) -> Tensor:
    """rho[m, n] = w_m^2 + w_n^2 with w_m = pi m / H and w_n = pi n / W, (H, W): the squared frequency of every coefficient.

    Frequencies are divided by `spacing`, the distance between neighbouring positions.

    Its precision is at least float32, because responses are computed from it (see `operator`).
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    if _is_plain(like) and h * w <= _CACHED_POINTS:
        return _cached_grid(h, w, dtype, like.device, spacing)
    return _build_grid(h, w, like.device, spacing).to(dtype)


def _check_spatial(x: Tensor) -> None:
    if x.ndim < 3:
        raise ValueError(f"a channels-last map needs at least 3 axes (..., H, W, C), got shape {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"a floating-point map is needed, got {x.dtype}; convert it first, for example with x.float()")


def _is_large(x: Tensor) -> bool:
    return _takes_fft(x, -3) or _takes_fft(x, -2)


def _takes_fft(x: Tensor, dim: int) -> bool:
    """Whether an axis is long enough, in eager mode. Meta tensors use the product, whose multiply-adds can be counted."""
    return _is_plain(x) and x.device.type != "meta" and x.shape[dim] > LARGE


def _dct(x: Tensor, dim: int) -> Tensor:
    """DCT-II along height or width, by FFT or matrix product depending on its length."""
    if _takes_fft(x, dim):
        return dct_fft(x, dim)
    return (_along_width if dim in (-2, x.ndim - 2) else _along_height)(dct_basis(x.shape[dim], x), x)


def _idct(x: Tensor, dim: int) -> Tensor:
    if _takes_fft(x, dim):
        return idct_fft(x, dim)
    return (_along_width if dim in (-2, x.ndim - 2) else _along_height)(dct_basis(x.shape[dim], x).mT, x)


def _along_width(basis: Tensor, x: Tensor) -> Tensor:
    if torch.compiler.is_exporting():
        return _mix_channels(basis, x.transpose(-3, -2)).transpose(-3, -2)
    # bmm with an expanded basis, not matmul: matmul folds the batch by transposing x, which copies it twice.
    *lead, w, c = x.shape
    batch = math.prod(lead)
    return torch.bmm(basis.expand(batch, w, w), x.reshape(batch, w, c)).view(*lead, w, c)


def _along_height(basis: Tensor, x: Tensor) -> Tensor:
    if torch.compiler.is_exporting():
        return _mix_channels(basis, x)
    *lead, h, w, c = x.shape
    batch = math.prod(lead)
    return torch.bmm(basis.expand(batch, h, h), x.reshape(batch, h, w * c)).view(*lead, h, w, c)


def _mix_channels(basis: Tensor, x: Tensor) -> Tensor:
    """The product along axis -3 as a 1x1 convolution that treats this axis as channels.

    Slower than bmm, but it merges no axes: torch.export cannot prove that merged axes of dynamic size can be split again.
    """
    return F.conv2d(x, basis[:, :, None, None])


def _is_plain(x: Tensor) -> bool:
    """Whether x is a real tensor in eager mode, so that cached constants can be used with it.

    While a graph is captured (compile, export) sizes may be symbolic, and fake tensors must never enter the cache.
    """
    return not torch.compiler.is_compiling() and type(x) in (Tensor, torch.nn.Parameter)


@lru_cache(_CACHE_SIZE)
def _cached_basis(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():  # an inference tensor could not be used in a later training step
        return _build_basis(n, device).to(dtype)


@lru_cache(_CACHED_GRIDS)
def _cached_grid(h: int, w: int, dtype: torch.dtype, device: torch.device, spacing: float) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return _build_grid(h, w, device, spacing).to(dtype)


def _build_basis(n: int, device: torch.device) -> Tensor:
    # Integers stored as floats: inductor would treat integer arithmetic as index expressions and simplify them for minutes.
    index = torch.arange(n, device=device, dtype=_build_dtype(device))
    phase = torch.remainder(index[:, None] * (2 * index + 1), 4 * n)  # exact, and so is the angle, at any size
    cosine = torch.cos(phase * (math.pi / 2) / n)  # (m, i)
    # Rows are normalised by their own norm: sqrt(2/n) in Python would become a constant of an exported graph.
    return cosine / torch.linalg.vector_norm(cosine, dim=1, keepdim=True)


def _build_grid(h: int, w: int, device: torch.device, spacing: float) -> Tensor:
    dtype = _build_dtype(device)
    w_m = torch.arange(h, device=device, dtype=dtype) * math.pi / h
    w_n = torch.arange(w, device=device, dtype=dtype) * math.pi / w
    rho = w_m.square()[:, None] + w_n.square()
    return rho if spacing == 1 else rho / spacing**2


def _build_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # Apple GPUs have no float64
