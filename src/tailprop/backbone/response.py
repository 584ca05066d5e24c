"""Responses of a filter over frequencies: what a mixer gives to the transforms.

Shapes: B batch, n_1 .. n_d spatial axes, C channels, J terms; a strip has all n_1 frequencies of the first axis and w of the
second.

    R = T_0 + sum_j w_j T_j

Terms depend on frequencies, and weights on images and channels. The paper's mix has T_0 = h_C and T_1 = h_G - h_C, a value for
each frequency, and the weight lambda for each image and channel. So R is the product of a matrix (S, J) and one (J, B C), which
costs no more than to write it, and its gradients are two more such products.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

from .capture import full_dtype, shared_in_graph
from .dct_split import PRODUCT, frequency_order

__all__ = ["Frequencies", "Mixture", "StripResponse", "is_plain"]

_ALL: Final = slice(None)
_CACHED_GRIDS: Final = 64  # a grid belongs to all sides of a map, so there are many of them
_CACHED_POINTS: Final = 1 << 18  # of a grid; a larger one takes megabytes, and milliseconds beside seconds for its image


class Frequencies(NamedTuple):
    """The frequencies of a map's coefficients, in the order of the transforms of its axes."""

    sizes: tuple[int, ...]
    pieces: tuple[int, ...]  # of each axis (`dct_split`)
    like: Tensor  # whose device and dtype values have; float32 at least, because responses are computed from them
    columns: slice = _ALL  # those of the second axis that are asked for

    @classmethod
    def in_order(cls, x: Tensor) -> "Frequencies":
        """Those of a map (B, n_1, .., n_d, C), ascending."""
        sizes = tuple(x.shape[1:-1])
        return cls(sizes, (PRODUCT,) * len(sizes), x)

    def squared(self, spacing: float = 1.0) -> Tensor:
        """rho = w_1^2 + .. + w_d^2 with w_k = pi m_k / n_k, (1, n_1, .., n_d, 1).

        Frequencies are divided by `spacing`, the distance between neighbouring positions.
        """
        dtype = full_dtype(self.like.dtype)
        if is_plain(self.like) and math.prod(self.sizes) <= _CACHED_POINTS:
            rho = _cached_grid(self.sizes, self.pieces, dtype, self.like.device, spacing)
            rho = rho[:, self.columns] if len(self.sizes) > 1 else rho
        else:
            key = (*self.sizes, *self.pieces, self.columns, dtype, self.like.device, spacing)
            rho = shared_in_graph(lambda: _build_grid(self, spacing).to(dtype), "grid", *key)
        return rho[None, ..., None]

    def take(self, values: Tensor) -> Tensor:
        """Values of ascending frequencies, (n_1, .., n_d, C), at these frequencies."""
        values = values[:, self.columns] if len(self.sizes) > 1 and self.orders[1] is None else values
        for axis, order in enumerate(self.orders):
            if order is not None:
                wanted = order[self.columns] if axis == 1 else order
                values = values.index_select(axis, wanted.to(values.device))
        return values

    @property
    def orders(self) -> list[Tensor | None]:
        return [frequency_order(n, pieces) for n, pieces in zip(self.sizes, self.pieces, strict=True)]


class Mixture(NamedTuple):
    """A response R = T_0 + sum_j w_j T_j. Terms are (B or 1, n_1, .., n_d, C or 1), weights (B or 1, J - 1, C or 1)."""

    terms: tuple[Tensor, ...]
    weights: Tensor | None = None

    def whole(self) -> Tensor:
        """R, broadcastable to (B, n_1, .., n_d, C)."""
        mixed, *others = self.terms
        for j, term in enumerate(others):
            mixed = torch.addcmul(mixed, self.weight(j), term)
        return mixed

    def weight(self, j: int) -> Tensor:
        """The weight of the term after the j-th, (B or 1, 1, .., 1, C or 1)."""
        assert self.weights is not None
        return self.weights[:, j].unflatten(0, (-1, *[1] * (self.terms[0].ndim - 2)))

    def at(self, columns: slice) -> "Mixture":
        """The same at some columns: frequencies of the second spatial axis, which a signal does not have."""
        return self if columns == _ALL else Mixture(tuple(t[:, :, columns] for t in self.terms), self.weights)

    def to(self, dtype: torch.dtype) -> "Mixture":
        return Mixture(tuple(t.to(dtype) for t in self.terms), None if self.weights is None else self.weights.to(dtype))

    def zeros_like(self) -> "Mixture":
        return Mixture(
            tuple(map(torch.zeros_like, self.terms)), None if self.weights is None else torch.zeros_like(self.weights)
        )


class StripResponse:
    """A response at a strip of coefficients, (n_1, w * n_3 * .. * B, C)."""

    def __init__(self, mixture: Mixture, shape: Sequence[int]) -> None:
        """`shape` is that of all coefficients, (n_1, .., n_d, B, C)."""
        self.mixture, self.merged = mixture, tuple(shape[2:-1]) if len(shape) > 3 else ()
        self.factors: tuple[Tensor, Tensor] | None = None
        if mixture.weights is not None and all(t.shape[0] == t.shape[-1] == 1 for t in mixture.terms):
            terms = torch.stack([t.flatten() for t in mixture.terms], dim=-1)  # (S, J)
            weights = mixture.weights.expand(shape[-2], -1, shape[-1]).transpose(0, 1).flatten(1)
            self.factors = terms, torch.cat([torch.ones_like(weights[:1]), weights])  # (J, BC)

    def applied(self, strip: Tensor) -> Tensor:
        """R * strip, contiguous."""
        if self.factors is not None:
            return self._mixed(*self.factors).view(strip.shape).mul_(strip)
        out = strip.new_empty(strip.shape)
        torch.mul(self._spread(strip), self.mixture.whole(), out=self._spread(out))
        return out

    def apply(self, strip: Tensor) -> None:
        """R * strip, in place."""
        if self.factors is not None:
            strip.mul_(self._mixed(*self.factors).view(strip.shape))
        else:
            self._spread(strip).mul_(self.mixture.whole())

    def add_gradients(self, product: Tensor, grads: Mixture) -> None:
        """Add the gradients of terms and weights at the strip: product = X^ * G^ is that of R."""
        if self.factors is not None:
            self._add_gradients_of_factors(product, grads, *self.factors)
            return
        spread = self._spread(product)
        grads.terms[0].add_(spread.sum_to_size(grads.terms[0].shape))
        for j, (term, grad) in enumerate(zip(self.mixture.terms[1:], grads.terms[1:], strict=True)):
            assert grads.weights is not None
            grad.add_((spread * self.mixture.weight(j)).sum_to_size(grad.shape))
            of_weight = (spread * term).flatten(1, -2).sum(1)  # (B, C)
            grads.weights[:, j].add_(of_weight.sum_to_size(grads.weights[:, j].shape))

    def _add_gradients_of_factors(self, product: Tensor, grads: Mixture, terms: Tensor, weights: Tensor) -> None:
        flat = product.view(len(terms), -1)  # (S, BC)
        for grad, values in zip(grads.terms, (flat @ weights.T).unbind(-1), strict=True):
            grad.add_(values.view(grad.shape))
        assert grads.weights is not None
        of_weights = (terms[:, 1:].T @ flat).unflatten(1, (-1, product.shape[-1])).transpose(0, 1)  # (B, J - 1, C)
        grads.weights.add_(of_weights.sum_to_size(grads.weights.shape))

    @staticmethod
    def _mixed(terms: Tensor, weights: Tensor) -> Tensor:
        return torch.mm(terms, weights, out=terms.new_empty(len(terms), weights.shape[1]))  # autocast leaves `out` alone

    def _spread(self, strip: Tensor) -> Tensor:  # (n_1, w * n_3 * .. * B, C) -> (B, n_1, w, n_3, .., C)
        return (strip.unflatten(1, (-1, *self.merged)) if self.merged else strip).movedim(-2, 0)


def is_plain(x: Tensor) -> bool:
    """Whether x is a real tensor in eager mode, so that cached constants can be used with it.

    While a graph is captured (compile, export) sizes may be symbolic, and fake tensors must never enter the cache.
    """
    return not torch.compiler.is_compiling() and type(x) in (Tensor, torch.nn.Parameter)


@lru_cache(_CACHED_GRIDS)
def _cached_grid(
    sizes: tuple[int, ...], pieces: tuple[int, ...], dtype: torch.dtype, device: torch.device, spacing: float
) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return _build_grid(Frequencies(sizes, pieces, torch.empty(0, device=device)), spacing).to(dtype)


def _build_grid(frequencies: Frequencies, spacing: float) -> Tensor:
    device = frequencies.like.device
    rho: Tensor | None = None
    for axis, (n, order) in enumerate(zip(frequencies.sizes, frequencies.orders, strict=True)):
        m = (
            torch.arange(n, device=device, dtype=build_dtype(device))
            if order is None
            else order.to(device, build_dtype(device))
        )
        squared = (m[frequencies.columns if axis == 1 else _ALL] * math.pi / n).square()
        rho = squared if rho is None else rho[..., None] + squared
    assert rho is not None
    return rho if spacing == 1 else rho / spacing**2


def build_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # Apple GPUs have no float64
