"""Orthonormal cosine transforms of channels-last signals, images and volumes, and filters between a transform and its inverse.

Shapes: B batch, n_1 .. n_d spatial axes (H, W of an image), C channels.

The paper (Appendix A) writes the pair as X^ = D_H X D_W^T and X = D_H^T X^ D_W for each channel: a product with a matrix along
each axis. In eager mode on a CPU each axis is transformed by what is fastest for its length (`dct_route`), the product, a split
into small products (`dct_split`) or an FFT (`dct_fft`), with gradients of their own (`dct_filter`). While a graph is captured,
under torch.func, in half precision and on other devices it is the product, recorded by autograd (`dct_product`); there only
long axes take the fast way, in eager mode.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .capture import full_dtype
from .dct_filter import filter_map, filtered_inverse, forward_map, inverse_map
from .dct_product import LARGE, dct_basis, transform
from .dct_route import choose_pieces
from .dct_split import Axis, axis_of, frequency_order
from .response import Frequencies, Mixture, is_plain

__all__ = [
    "MAX_GAIN",
    "Frequencies",
    "Mixture",
    "dct",
    "dct2",
    "dct_basis",
    "frequency_grid",
    "idct",
    "idct2",
    "normalizing_gain",
    "spectral_branches",
    "spectral_filter",
]

MAX_GAIN: Final = 5e4  # of a normalized channel, below the largest float16; a few points spread over a map need a gain of 1e4

Respond = Callable[[Frequencies], Tensor | Mixture]


def dct(x: Tensor, num_axes: int | None = None) -> Tensor:
    """Orthonormal DCT-II over the last `num_axes` axes before the channels; by default over all but the first and the last.

    >>> signal, video = torch.randn(2, 50, 3), torch.randn(2, 8, 7, 9, 3)
    >>> torch.allclose(idct(dct(signal)), signal, atol=1e-5), torch.allclose(idct(dct(video)), video, atol=1e-5)
    (True, True)
    """
    num_axes = _checked_axes(x, num_axes)
    if not _is_fast(x, num_axes):
        return transform(x, num_axes)
    maps = _in_full(x).reshape(-1, *x.shape[-num_axes - 1 :])  # (B, n_1, .., n_d, C)
    pieces = _choose_all(maps)
    coefficients = forward_map(maps, _axes(maps, pieces)).movedim(-2, 0)
    for dim, (n, m) in enumerate(zip(maps.shape[1:-1], pieces, strict=True), start=1):
        order = frequency_order(n, m)
        if order is not None:
            coefficients = _Reorder.apply(coefficients, dim, torch.argsort(order), order)
    return coefficients.contiguous().view(x.shape).to(x.dtype)


def idct(x: Tensor, num_axes: int | None = None) -> Tensor:
    """Inverse of `dct` (an orthonormal DCT-III over the same axes)."""
    num_axes = _checked_axes(x, num_axes)
    if not _is_fast(x, num_axes):
        return transform(x, num_axes, inverse=True)
    maps = coefficients = _in_full(x).reshape(-1, *x.shape[-num_axes - 1 :])
    pieces = _choose_all(maps)
    for dim, (n, m) in enumerate(zip(maps.shape[1:-1], pieces, strict=True), start=1):
        order = frequency_order(n, m)
        if order is not None:
            coefficients = _Reorder.apply(coefficients, dim, order, torch.argsort(order))
    return inverse_map(coefficients.movedim(0, -2).contiguous(), _axes(maps, pieces)).view(x.shape).to(x.dtype)


def dct2(x: Tensor) -> Tensor:
    """Orthonormal DCT-II over height and width of a channels-last map.

    >>> x = torch.randn(2, 7, 9, 3)
    >>> torch.allclose(idct2(dct2(x)), x, atol=1e-5)
    True
    """
    return dct(x, 2)  # (B, H, W, C)


def idct2(x: Tensor) -> Tensor:
    """Inverse of `dct2` (an orthonormal DCT-III over height and width)."""
    return idct(x, 2)  # (B, H, W, C)


def spectral_filter(x: Tensor, respond: Respond, normalized: Tensor | None = None) -> Tensor:
    """IDCT(R * DCT(X)) with one transform pair, over all axes of x but the first and the last.

    Args:
        x: Map, (B, n_1, .., n_d, C).
        respond: Gives R for some `Frequencies`, broadcastable to (B, n_1, .., n_d, C), as a tensor or a `Mixture`. R takes the
            dtype of x. For a large map without gradients it is called for a few columns of frequencies at a time, so that the
            whole response is never in memory.
        normalized: Channels where this, (C,), is 1 get a mean square of 1 over the map of every image; the others stay as they
            are.
    """
    num_axes = _checked_axes(x, None)
    if _is_fast(x, num_axes):
        y = _filter_fast(_in_full(x), respond).to(x.dtype)
        return y if normalized is None else y * normalizing_gain(y, normalized)
    response = _mixture(respond(Frequencies.in_order(x))).whole().to(x.dtype)
    coefficients = transform(x, num_axes) * response
    if normalized is not None:  # over frequencies as over positions (Parseval), where half precision would lose weak channels
        coefficients = coefficients * normalizing_gain(coefficients, normalized)
    return transform(coefficients, num_axes, inverse=True)


def spectral_branches(x: Tensor, respond: Callable[[Frequencies], list[Mixture]]) -> list[Tensor]:
    """IDCT(R_k * DCT(X)) for several responses: one transform, and an inverse for each."""
    num_axes = _checked_axes(x, None)
    if not _is_fast(x, num_axes):
        coefficients = transform(x, num_axes)
        responses = [mixture.whole().to(x.dtype) for mixture in respond(Frequencies.in_order(x))]
        return [transform(response * coefficients, num_axes, inverse=True) for response in responses]
    maps = _in_full(x)
    pieces = _choose_all(maps)
    axes = _axes(maps, pieces)
    coefficients = forward_map(maps, axes)
    mixtures = respond(Frequencies(tuple(maps.shape[1:-1]), pieces, maps))
    return [filtered_inverse(coefficients, axes, mixture.to(maps.dtype)).to(x.dtype) for mixture in mixtures]


def normalizing_gain(x: Tensor, normalized: Tensor) -> Tensor:
    """A factor for each channel of each map, (B, 1, .., 1, C): one over its root mean square where `normalized` is 1, else 1.

    It is at most `MAX_GAIN`: 1 / sqrt(mean + eps) with eps = 1 / MAX_GAIN^2, but written without eps, because ONNX exporters
    drop the addition of so small a number.
    """
    spatial = tuple(range(1, x.ndim - 1))
    wide = x.to(full_dtype(x.dtype))
    mean_square = (wide * wide).mean(spatial, keepdim=True)  # the gradient of a square would copy the map
    inverse_rms = MAX_GAIN * torch.rsqrt(1 + MAX_GAIN**2 * mean_square)
    return (1 + normalized * (inverse_rms - 1)).to(x.dtype)


def frequency_grid(h: int, w: int, like: Tensor, spacing: float = 1.0) -> Tensor:
    """rho[m, n] = w_m^2 + w_n^2 with w_m = pi m / H and w_n = pi n / W, (H, W): the squared frequency of every coefficient.

    Frequencies are divided by `spacing`, the distance between neighbouring positions.

    Its precision is at least float32, because responses are computed from it (see `operator`).
    """
    return Frequencies((h, w), (1, 1), like).squared(spacing)[0, ..., 0]


class _Reorder(torch.autograd.Function):
    """Entries of an axis in another order; the gradient by the inverse order, which is faster than adding at indices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.dim, ctx.index, ctx.inverse = dim, index, inverse
        return x.index_select(dim, index.to(x.device))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Reorder.apply(grad, ctx.dim, ctx.inverse, ctx.index), None, None, None


def _filter_fast(x: Tensor, respond: Respond) -> Tensor:
    pieces = _choose_all(x)
    axes, sizes = _axes(x, pieces), tuple(x.shape[1:-1])

    def at(columns: slice) -> Mixture:
        return _mixture(respond(Frequencies(sizes, pieces, x, columns))).to(x.dtype)

    if torch.is_grad_enabled():
        return filtered_inverse(forward_map(x, axes), axes, at(slice(None)))
    return filter_map(x, axes, at)


def _mixture(response: Tensor | Mixture) -> Mixture:
    return response if isinstance(response, Mixture) else Mixture((response,))


def _choose_all(x: Tensor) -> tuple[int, ...]:
    return tuple(choose_pieces(n, x.device, torch.is_grad_enabled()) for n in x.shape[1:-1])


def _axes(x: Tensor, pieces: tuple[int, ...]) -> tuple[Axis, ...]:
    return tuple(axis_of(n, m, x) for n, m in zip(x.shape[1:-1], pieces, strict=True))


def _is_fast(x: Tensor, num_axes: int) -> bool:
    """Whether the axes are transformed each in its way, with gradients of their own, which need real tensors in eager mode."""
    if not is_plain(x) or x.device.type not in ("cpu", "cuda") or x.numel() == 0 or _is_transformed():
        return False
    if max(x.shape[-num_axes - 1 : -1]) > LARGE:
        return True
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")


def _is_transformed() -> bool:
    """Whether a call is traced, or differentiated or vectorized by torch.func, or differentiated in forward mode."""
    return torch._C._is_tracing() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _in_full(x: Tensor) -> Tensor:
    return x.to(full_dtype(x.dtype))


def _checked_axes(x: Tensor, num_axes: int | None) -> int:
    num_axes = x.ndim - 2 if num_axes is None else num_axes
    if num_axes < 1 or x.ndim < num_axes + 1:
        least = f"{num_axes + 1} axes" if num_axes >= 1 else "3 axes, batch and channels among them,"
        raise ValueError(f"a channels-last map needs at least {least} for its transform, got shape {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"a floating-point map is needed, got {x.dtype}; convert it first, for example with x.float()")
    return num_axes
