"""Transforms and filters of whole maps in eager mode: strip by strip, with gradients of their own.

Shapes: B batch, n_1 .. n_d spatial axes, C channels; R everything before an axis; J terms of a response.

Each step transforms the last spatial axis and moves it to the front (`dct_split`), so a map (B, n_1, .., n_d, C) becomes
coefficients (n_1, .., n_d, B, C): all products are of large matrices, and a response over frequencies meets all images and
channels at once. Steps run over a few rows at a time, and the last step, the response and the first step of the inverse over a
few columns, so that what they pass on stays in the caches: at a megapixel, memory takes more time than arithmetic.

The transform is orthonormal, so the adjoint of either direction is the other one. Autograd would record every product, and go
backwards through an FFT at several times its cost. Here the gradients of Y = IDCT(R * X^) are dX^ = R * G^ and dR = X^ * G^
with G^ = DCT(dY), and of all this only X^ is kept.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from .dct_split import Axis
from .response import Mixture, StripResponse

__all__ = ["filter_map", "filtered_inverse", "forward_map", "inverse_map"]

STRIP_BYTES: Final = 2 << 20  # on a CPU; a GPU has a cache of its own size and is faster with the whole map
_ALL: Final = slice(None)

Axes = tuple[Axis, ...]


def forward_map(x: Tensor, axes: Axes) -> Tensor:
    """DCT of every axis, (B, n_1, .., n_d, C) -> (n_1, .., n_d, B, C), frequencies in the order of the axes."""
    return _Forward.apply(x, axes)


def inverse_map(coefficients: Tensor, axes: Axes) -> Tensor:
    """The map of coefficients, (n_1, .., n_d, B, C) -> (B, n_1, .., n_d, C)."""
    return _Inverse.apply(coefficients, axes)


def filtered_inverse(coefficients: Tensor, axes: Axes, response: Mixture) -> Tensor:
    """IDCT(R * X^), with gradients of the coefficients, the terms and the weights of the response."""
    return _FilteredInverse.apply(coefficients, axes, response.weights, *response.terms)


def filter_map(x: Tensor, axes: Axes, respond: Callable[[slice], Mixture]) -> Tensor:
    """IDCT(R * DCT(X)) without gradients: the response is computed for a few columns at a time."""
    shape = _coefficient_shape(x)
    rows = _before_last_step(x, axes)  # (R, n_1, C)
    out = rows if len(axes) > 1 else torch.empty_like(rows)  # with one axis the rows are the input
    for columns, part in _column_strips(shape, x):
        strip = rows.new_empty(shape[0], part.stop - part.start, shape[-1])
        scratch = _scratch(strip)
        axes[0].forward(rows[part], strip, scratch)
        StripResponse(respond(columns), shape).apply(strip)
        axes[0].inverse(strip, out[part], scratch)
    return _after_first_step(out, shape, axes)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: Axes) -> Tensor:
        ctx.axes = axes
        shape = _coefficient_shape(x)
        rows = _before_last_step(x, axes)
        return _step(axes[0], rows).view(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Inverse.apply(grad, ctx.axes), None


class _Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, coefficients: Tensor, axes: Axes) -> Tensor:
        ctx.axes = axes
        return _after_first_step(_inverse_step(axes[0], coefficients.flatten(1, -2)), coefficients.shape, axes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Forward.apply(grad, ctx.axes), None


class _FilteredInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, coefficients: Tensor, axes: Axes, weights: Tensor | None, *terms: Tensor) -> Tensor:
        ctx.axes = axes
        ctx.save_for_backward(coefficients, weights, *terms)
        response, shape = Mixture(terms, weights), coefficients.shape
        flat = coefficients.flatten(1, -2)  # (n_1, R, C)
        rows = flat.new_empty(flat.shape[1], flat.shape[0], flat.shape[2])
        for columns, part in _column_strips(shape, flat):
            strip = StripResponse(response.at(columns), shape).applied(flat[:, part])
            axes[0].inverse(strip, rows[part], _scratch(strip))
        return _after_first_step(rows, shape, axes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # for gradients of gradients
            return _recorded_gradients(ctx, grad)
        coefficients, weights, *terms = ctx.saved_tensors
        response, shape = Mixture(tuple(terms), weights), coefficients.shape
        flat = coefficients.flatten(1, -2)
        rows = _before_last_step(grad, ctx.axes)
        grad_flat, grads = torch.empty_like(flat), response.zeros_like()
        for columns, part in _column_strips(shape, flat):
            strip = grad_flat[:, part]
            ctx.axes[0].forward(rows[part], strip, _scratch(strip))
            applied = StripResponse(response.at(columns), shape)
            if any(ctx.needs_input_grad[2:]):
                applied.add_gradients(flat[:, part] * strip, grads.at(columns))
            applied.apply(strip)
        return grad_flat.view(shape), None, grads.weights, *grads.terms


def _recorded_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients by operations that autograd records."""
    coefficients, weights, *terms = ctx.saved_tensors
    inputs = [t for t in (coefficients, weights, *terms) if t is not None and t.requires_grad]
    filtered = coefficients * Mixture(tuple(terms), weights).whole().movedim(0, -2)
    found = iter(torch.autograd.grad(_Inverse.apply(filtered, ctx.axes), inputs, grad, create_graph=True))
    first, *others = (next(found) if t is not None and t.requires_grad else None for t in (coefficients, weights, *terms))
    return first, None, *others


def _coefficient_shape(x: Tensor) -> torch.Size:
    return torch.Size([*x.shape[1:-1], x.shape[0], x.shape[-1]])


def _before_last_step(x: Tensor, axes: Axes) -> Tensor:
    """All axes but the first transformed: (n_2 * .. * n_d * B, n_1, C)."""
    sizes, channels = x.shape[1:-1], x.shape[-1]
    rows = x.reshape(-1, sizes[-1], channels)
    for k in range(len(axes) - 1, 0, -1):
        rows = _step(axes[k], rows).view(-1, sizes[k - 1], channels)
    return rows


def _after_first_step(rows: Tensor, shape: torch.Size, axes: Axes) -> Tensor:
    """The inverse of all axes but the first, from (n_2 * .. * n_d * B, n_1, C): the map (B, n_1, .., n_d, C)."""
    *sizes, batch, channels = shape
    for k in range(1, len(axes)):
        rows = _inverse_step(axes[k], rows.view(sizes[k], -1, channels))
    return rows.view(batch, *sizes, channels)


def _step(axis: Axis, x: Tensor) -> Tensor:  # (R, N, C) -> (N, R, C)
    out = x.new_empty(x.shape[1], x.shape[0], x.shape[2])
    for part in _strips(len(x), x[:1].numel(), x):
        axis.forward(x[part], out[:, part], _scratch(out[:, part]))
    return out


def _inverse_step(axis: Axis, x: Tensor) -> Tensor:  # (N, R, C) -> (R, N, C)
    out = x.new_empty(x.shape[1], x.shape[0], x.shape[2])
    for part in _strips(len(out), out[:1].numel(), x):
        axis.inverse(x[:, part], out[part], _scratch(x[:, part]))
    return out


def _column_strips(shape: torch.Size, like: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of the second axis of coefficients, and of the merged rows they stand for. A signal has one strip."""
    rows = math.prod(shape[1:-1])
    each = math.prod(shape[2:-1])
    strips = _strips(shape[1], shape[0] * each * shape[-1], like) if len(shape) > 3 else []
    if len(strips) < 2:
        yield _ALL, slice(0, rows)
    else:
        yield from ((columns, slice(columns.start * each, columns.stop * each)) for columns in strips)


def _strips(count: int, numel: int, like: Tensor) -> list[slice]:
    """Slices of an axis of `count` entries with `numel` values each: on a CPU of about `STRIP_BYTES`."""
    strips = math.ceil(count * numel * like.element_size() / STRIP_BYTES) if like.device.type == "cpu" else 1
    each = math.ceil(count / max(1, strips))  # strips of one size
    return [slice(first, min(first + each, count)) for first in range(0, count, each)]


def _scratch(like: Tensor) -> Tensor:
    return like.new_empty(2, *like.shape)
