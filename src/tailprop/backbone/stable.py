"""Propagation by stable responses, as functions: the operator of the paper, its form for gates by place, and a reference.

Shapes: B batch, n_1 .. n_d one to three spatial axes (H height, W width of an image), C channels, K orders in the mix.

Every response is a member of the stable family of Eq. (1) to (3) of the paper, with k = kappa * t,

    h(rho) = exp(-k rho^(alpha/2)),   0 < alpha <= 2,

Gaussian at alpha = 2 (light tail), Cauchy at alpha = 1 (heavy tail).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.fx
from torch import Tensor

from . import tail_triton
from .capture import full_dtype
from .dct import MAX_GAIN, Frequencies, Mixture, normalizing_gain, spectral_branches, spectral_filter
from .response_cache import ResponseCache

__all__ = [
    "Mix",
    "at_least_float32",
    "checked_orders",
    "stable_response",
    "tail_propagate",
    "tail_propagate_by_place",
    "tail_propagate_reference",
]


def stable_response(rho: Tensor, scale: Tensor, order: float | Tensor) -> Tensor:
    """exp(-k rho^(alpha/2)), broadcast over its arguments; exactly 1 at rho = 0 for every order."""
    if isinstance(order, Tensor):
        at_zero = rho == 0
        log_rho = torch.log(rho.masked_fill(at_zero, 1.0))  # log 0 would give a learned order a NaN gradient
        power = torch.exp(0.5 * order * log_rho).masked_fill(at_zero, 0.0)
    else:
        power = rho.pow(0.5 * order)
    return torch.exp(-scale * power)


def tail_propagate(
    x: Tensor,
    scales: Tensor | Sequence[float],
    weights: Tensor | Sequence[float] | None = None,
    orders: Tensor | Sequence[float] = (2.0, 1.0),
    spacing: float = 1.0,
    normalized: Tensor | None = None,
    gain: Tensor | None = None,
    kept: ResponseCache | None = None,
) -> Tensor:
    """Y = IDCT(sum_k w_k exp(-k_k rho^(alpha_k/2)) * DCT(X)): Eq. (7) of the paper, for any number of orders.

    Args:
        x: Channels-last map, (B, H, W, C); or a signal, (B, N, C), or a volume or video, (B, D, H, W, C).
        scales: Positive scales k, (K,) or one for each channel, (K, C). In pixels: a Gaussian has standard deviation
            sqrt(2k), a Cauchy kernel half-width k.
        weights: Mixing weights, (K,), (K, C) or (B, K, C), summing to 1 over K; equal weights by default. With two orders
            these are lambda and 1 - lambda. The last weight is computed as 1 minus the others, so that the mean of each
            channel is preserved exactly.
        orders: K numbers in (0, 2], or a tensor of shape (K,), (K, C) or (B, K, C) if they are learned.
        spacing: Distance of neighbouring positions in the unit of the scales; below 1 on a finer map.
        normalized: 1 for channels whose result is normalized to variance 1 over the map of every image, around its mean, 0 for
            the others, (C,); none by default. A long kernel makes what it delivers weak: white noise by a factor of about 4 l
            for a Gaussian of standard deviation l.
        gain: Factor of what differs from the mean of each channel, (C,); 1 by default.
        kept: Responses of earlier calls, to be used while scales and orders are the same; only without gradients, and only
            where no orders are predicted for each image.

    >>> photo = torch.rand(1, 64, 48, 3)
    >>> tail_propagate(photo, scales=(8.0, 2.0), weights=(0.3, 0.7)).shape
    torch.Size([1, 64, 48, 3])
    """
    _check_map(x)
    mix = Mix.of(x, scales, weights, orders, spacing)
    by_kernel = tail_triton.usable(x, normalized)
    mean = _mean_apart(x, normalized, gain, by_kernel)
    deviations = x if mean is None else x - mean
    if by_kernel:
        y = tail_triton.propagate(deviations, mix, normalized, _by_products)
        if gain is not None:
            left = gain if normalized is None else torch.where(normalized > 0, 1.0, gain)  # normalization cancels gains
            y = y * left.to(y.dtype)
    else:
        y = _by_products(deviations, mix, normalized, gain, kept)
    # contiguous already, except in an exported graph, whose sizes must not decide on the layout of a sum
    return y if mean is None else y.contiguous() + mean  # (B, H, W, C)


def _by_products(
    x: Tensor, mix: "Mix", normalized: Tensor | None, gain: Tensor | None = None, kept: ResponseCache | None = None
) -> Tensor:
    """The operator by matrix products, on a map whose normalized channels have no mean."""

    def respond(frequencies: Frequencies) -> Mixture:
        return _adjusted(mix.mixture(frequencies), frequencies, normalized, gain)

    def recall(frequencies: Frequencies) -> Mixture:
        assert kept is not None
        origin = [v for v in (mix.scales, *mix.orders, normalized, gain) if isinstance(v, Tensor)]
        return Mixture(kept.terms(frequencies, mix.spacing, origin, lambda f: respond(f).terms), mix.mixing_weights)

    return spectral_filter(x, respond if kept is None else recall, normalized)


def tail_propagate_by_place(
    x: Tensor,
    scales: Tensor | Sequence[float],
    weights: Tensor,
    orders: Tensor | Sequence[float] = (2.0, 1.0),
    spacing: float = 1.0,
    normalized: Tensor | None = None,
    gain: Tensor | None = None,
) -> Tensor:
    """Y = sum_k w_k * IDCT(h_k * DCT(X)) with weights of every position, (B, K, H, W, C): the paper's future work.

    Weights that differ between positions cannot be fused before the inverse transform, so it takes one DCT and K inverse
    DCTs, where `tail_propagate` takes one of each. The other arguments are those of `tail_propagate`.
    """
    _check_map(x)
    shared = [1 / weights.shape[1]] * weights.shape[1]
    mix = Mix.of(x, scales, shared, orders, spacing)
    mean = _mean_apart(x, normalized, gain)

    def respond(frequencies: Frequencies) -> list[Mixture]:
        return [_adjusted(Mixture((h,)), frequencies, normalized, gain) for h in mix.each_response(frequencies)]

    # contiguous for the same reason as above
    *others, last = [branch.contiguous() for branch in spectral_branches(x if mean is None else x - mean, respond)]
    y = last
    for k, branch in enumerate(others):
        y = torch.addcmul(y, weights[:, k].to(x.dtype), branch - last)
    y = y if normalized is None else y * normalizing_gain(y, normalized)
    return y if mean is None else y + mean  # (B, H, W, C)


def tail_propagate_reference(
    x: Tensor,
    scales: Tensor | Sequence[float],
    weights: Tensor | Sequence[float] | None = None,
    orders: Tensor | Sequence[float] = (2.0, 1.0),
    spacing: float = 1.0,
    normalized: Tensor | None = None,
    gain: Tensor | None = None,
) -> Tensor:
    """The same operator in its simplest form: a branch for each order, each with its own transform pair, mixed in space.

    It always computes in float64, so that a difference from `tail_propagate` is an error of the fast path.
    """
    _check_map(x)
    dtype, x = x.dtype, x.double()
    bases = [_cosine_matrix(n, x) for n in x.shape[1:-1]]
    rho = torch.zeros(x.shape[1:-1], dtype=x.dtype, device=x.device)  # (H, W)
    for axis, n in enumerate(rho.shape):
        w_m = math.pi * torch.arange(n, dtype=x.dtype, device=x.device) / (n * spacing)
        rho = rho + (w_m**2).view([-1 if other == axis else 1 for other in range(rho.ndim)])
    rho = rho[..., None]
    away_from_zero = torch.where(rho > 0, rho, 1.0)

    mix = Mix.of(x, scales, weights, orders)
    last = 1 - mix.weights[:, :-1].sum(1, keepdim=True)
    shares = torch.cat([mix.weights[:, :-1], last], dim=1)
    y = torch.zeros_like(x)
    for k, order in enumerate(mix.orders):
        alpha = _over_map(order, x.ndim - 2) if isinstance(order, Tensor) else order  # (B, 1, 1, C) or a number
        decay = torch.where(rho > 0, away_from_zero ** (alpha / 2), 0.0)  # rho^(alpha/2), (B, H, W, C)
        branch = x
        for axis, basis in enumerate(bases, start=1):  # DCT
            branch = torch.tensordot(branch, basis, dims=([axis], [1])).movedim(-1, axis)
        branch = torch.exp(-mix.scales[k] * decay) * branch
        for axis, basis in enumerate(bases, start=1):  # inverse DCT
            branch = torch.tensordot(branch, basis, dims=([axis], [0])).movedim(-1, axis)
        y = y + _over_map(shares[:, k], x.ndim - 2) * branch
    mean = y.mean(_spatial(y), keepdim=True)
    y = y if gain is None else mean + gain * (y - mean)
    if normalized is not None:
        rms = ((y - mean).square().mean(_spatial(y), keepdim=True) + 1 / MAX_GAIN**2).sqrt()
        y = torch.where(normalized > 0, mean + (y - mean) / rms, y)
    return y.to(dtype)


for _leaf in ("tail_propagate", "tail_propagate_by_place"):  # leaf functions for symbolic tracing: inside, sizes are numbers
    torch.fx.wrap(_leaf)


def _cosine_matrix(n: int, like: Tensor) -> Tensor:
    """D[m, i] = c_m cos(pi m (2i + 1) / (2n)), entry by entry."""
    norm = [math.sqrt((1 if m == 0 else 2) / n) for m in range(n)]
    rows = [[norm[m] * math.cos(math.pi * m * (2 * i + 1) / (2 * n)) for i in range(n)] for m in range(n)]
    return torch.tensor(rows, dtype=like.dtype, device=like.device)


class Mix(NamedTuple):
    """Scales, weights and orders in broadcastable shapes, in float32 or float64."""

    scales: Tensor  # (K, C or 1)
    weights: Tensor  # (B or 1, K, C or 1)
    orders: tuple[float | Tensor, ...]  # K numbers, or K tensors (B or 1, C or 1)
    spacing: float = 1.0

    @classmethod
    def of(
        cls,
        x: Tensor,
        scales: Tensor | Sequence[float],
        weights: Tensor | Sequence[float] | None,
        orders: Tensor | Sequence[float],
        spacing: float = 1.0,
    ) -> "Mix":
        dtype = full_dtype(x.dtype)
        _check_numbers(scales, weights)
        scales = _as_tensor(scales, dtype, x.device)
        scales = scales[:, None] if scales.ndim == 1 else scales
        num_orders = scales.shape[0]
        if weights is None:
            weights = [1 / num_orders] * num_orders
        weights = _to_bkc(_as_tensor(weights, dtype, x.device))
        split = _to_bkc(orders.to(dtype)).unbind(1) if isinstance(orders, Tensor) else checked_orders(orders)
        if not num_orders == weights.shape[1] == len(split):
            raise ValueError(
                f"expected one scale, one weight and one order for each response, got {num_orders} scales, "
                f"{weights.shape[1]} weights and {len(split)} orders"
            )
        return cls(scales, weights, split, spacing)

    def each_response(self, frequencies: Frequencies) -> list[Tensor]:
        """The response of each order alone, K tensors (B or 1, n_1, .., n_d, C or 1)."""
        rho, num_axes = frequencies.squared(self.spacing), len(frequencies.sizes)
        orders = (_over_map(o, num_axes) if isinstance(o, Tensor) else o for o in self.orders)
        return [stable_response(rho, k, order) for k, order in zip(self.scales, orders, strict=True)]

    def mixture(self, frequencies: Frequencies) -> Mixture:
        """sum_k w_k h_k as h_K + sum_(k<K) w_k (h_k - h_K): exactly 1 at rho = 0."""
        *others, last = self.each_response(frequencies)
        return Mixture((last, *[h - last for h in others]), self.mixing_weights)

    @property
    def mixing_weights(self) -> Tensor | None:
        """Those of all responses but the last, (B or 1, K - 1, C or 1)."""
        return self.weights[:, :-1] if len(self.orders) > 1 else None


def _mean_apart(x: Tensor, normalized: Tensor | None, gain: Tensor | None, by_kernel: bool = False) -> Tensor | None:
    """The mean of each channel, (B, 1, 1, C), that goes around the transforms; None if all means go through them.

    That of normalized channels does, and in half precision that of all channels with a gain: rounding would leak it into other
    frequencies, where the gain is large.
    """
    if gain is not None and (by_kernel or x.dtype in (torch.float16, torch.bfloat16)):
        return x.mean(_spatial(x), keepdim=True)
    return None if normalized is None else normalized.to(x.dtype) * x.mean(_spatial(x), keepdim=True)


def _adjusted(response: Mixture, frequencies: Frequencies, normalized: Tensor | None, gain: Tensor | None) -> Mixture:
    """The response with gains, which leave the mean alone, and without the mean of normalized channels."""
    if gain is not None:
        factor = torch.where(frequencies.squared() == 0, 1.0, gain.to(response.terms[0].dtype))  # (1, n_1, .., n_d, C)
        response = Mixture(tuple(term * factor for term in response.terms), response.weights)
    return response if normalized is None else _without_mean(response, frequencies, normalized)


def _without_mean(response: Mixture, frequencies: Frequencies, normalized: Tensor) -> Mixture:
    """The response, but 0 at the frequency of the mean for normalized channels, where a rounded mean may be left.

    All terms after the first are 0 there already.
    """
    first, *others = response.terms
    is_mean = frequencies.squared() == 0
    return Mixture((first * (1 - is_mean * normalized), *others), response.weights)


def _as_tensor(values: Tensor | Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(values, Tensor) and values.dtype == dtype and values.device == device:
        return values  # `as_tensor` would be two operations of an exported graph
    return torch.as_tensor(values, dtype=dtype, device=device)


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(1, x.ndim - 1))


def _over_map(v: Tensor, num_axes: int) -> Tensor:
    """(B, C) as (B, 1, .., 1, C)."""
    return v.unflatten(0, (-1, *[1] * num_axes))


def _check_map(x: Tensor) -> None:
    if not 3 <= x.ndim <= 5:
        raise ValueError(
            "expected a channels-last map (batch, height, width, channels), or one with one or three axes between batch and "
            f"channels, got shape {tuple(x.shape)}"
        )


def _check_numbers(scales: Tensor | Sequence[float], weights: Tensor | Sequence[float] | None) -> None:
    """Reject invalid Python numbers; the values of tensors are not checked, because that would synchronize with a GPU."""
    for name, values in (("scales", scales), ("weights", weights)):
        if isinstance(values, int | float) or (isinstance(values, Tensor) and values.ndim == 0):
            raise ValueError(f"{name} needs a value for each order, got the single number {values}")
    if not isinstance(scales, Tensor):
        for scale in scales:
            if not 0 <= scale < math.inf:
                raise ValueError(f"a scale must be finite and not negative, got {scale}")
    if isinstance(weights, list | tuple) and not math.isclose(sum(weights), 1, abs_tol=1e-3):
        raise ValueError(f"weights must sum to 1, got {weights}")


def _to_bkc(v: Tensor) -> Tensor:
    """(K,), (K, C) or (B, K, C) as (B or 1, K, C or 1)."""
    if v.ndim == 1:
        return v[None, :, None]
    return v[None] if v.ndim == 2 else v


def checked_orders(orders: Sequence[float]) -> tuple[float, ...]:
    if len(orders) == 0:
        raise ValueError("orders is empty; give at least one, for example orders=(2.0, 1.0)")
    for order in orders:
        if not 0 < order <= 2:
            raise ValueError(f"a stable order must be in (0, 2], got {order}; 2 is Gaussian, 1 is Cauchy")
    return tuple(float(order) for order in orders)


def at_least_float32(v: Tensor) -> Tensor:
    """v in at least float32: gates, scales and responses are computed in full precision under autocast."""
    return v if v.dtype == full_dtype(v.dtype) else v.float()
