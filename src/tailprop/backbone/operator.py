"""The Tail Propagation Operator: a mix of stable responses applied between one DCT and one inverse DCT.

Shapes: B batch, H height, W width, C channels, K orders in the mix.

Every response is a member of the stable family of Eq. (1) to (3) of the paper, with k = kappa * t,

    h(rho) = exp(-k rho^(alpha/2)),   0 < alpha <= 2,

Gaussian at alpha = 2 (light tail), Cauchy at alpha = 1 (heavy tail). Orders, scales and the gate that mixes them are
settings; the seven variants of the paper's ablation are rows of `VARIANTS`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from ._checks import check_at_least, check_choice
from .dct import Frequencies, dct, normalizing_gain
from .gates import PooledMLP, PositionMLP, mixing_weights
from .layers import is_captured
from .observed import Observed
from .response import is_plain
from .response_cache import ResponseCache
from .stable import (
    Mix,
    at_least_float32,
    checked_orders,
    stable_response,
    tail_propagate,
    tail_propagate_by_place,
    tail_propagate_reference,
)

__all__ = [
    "MULTISCALE",
    "VARIANTS",
    "PropagationDetails",
    "TailPropagation",
    "at_least_float32",
    "stable_response",
    "tail_propagate",
    "tail_propagate_by_place",
    "tail_propagate_reference",
]

GATES: Final = ("content", "learned", "fixed", "spatial")
SCALE_MODES: Final = ("softplus", "length")
LENGTH_UNITS: Final = ("px", "map")
ORDER_MODES: Final = ("fixed", "learned", "content")
SHORTEST: Final = 0.05  # initial lengths by default, in positions
LONGEST: Final = 16.0
LOST: Final = 4.0  # white noise leaves a kernel of length l weaker by this times l
SCALE_OFFSET: Final = 1e-4  # keeps k positive where softplus underflows

# leaf functions for symbolic tracing: inside, sizes and dtypes are known
for _leaf in ("at_least_float32", "tail_propagate", "tail_propagate_by_place"):
    torch.fx.wrap(_leaf)

# The matched controls of the paper (Table 5 and Appendix E.1) as settings of `TailPropagation`.
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "tailprop": dict(orders=(2.0, 1.0), gate="content"),
    "gaussian": dict(orders=(2.0,), gate="fixed"),
    "cauchy": dict(orders=(1.0,), gate="fixed"),
    "fixed": dict(orders=(2.0, 1.0), gate="fixed"),
    "learnable": dict(orders=(2.0, 1.0), gate="learned"),
    "dual_gaussian": dict(orders=(2.0, 2.0), gate="content"),
    "adaptive_alpha": dict(orders=(1.0,), gate="fixed", order_mode="content"),
}

# Ours: every channel has a length of its own, so that some stay local and some reach far from the first step on, and learns it
# at the same relative rate. What a long kernel delivers is weak, so every channel has a gain. docs/study.md has experiments.
MULTISCALE: Final[dict[str, Any]] = dict(orders=(2.0, 1.0), gate="content", scale_mode="length", learned_gain=True)


@dataclass(frozen=True)
class PropagationDetails:
    """Internal values of a `TailPropagation` for one batch, for diagnostics (Figures 3 and 4, Appendix G of the paper)."""

    scales: Tensor  # (K, 1) or (K, C): propagation scales k
    weights: Tensor  # (B, K, C): mixing weights
    orders: Tensor  # (B, K, C): stable orders alpha
    responses: Tensor  # (B, K, H, W, C): each order alone; H_G and H_C for the paper's operator
    mixed: Tensor  # (B, H, W, C): the mixed response
    coefficients: Tensor  # (B, H, W, C): the DCT of the input
    gain: Tensor | None  # (B, C): factor of all coefficients but the mean; None without gains and normalized channels

    @property
    def lam(self) -> Tensor:
        """lambda(X), (B, C): the weight of the first order."""
        return self.weights[:, 0]


class TailPropagation(nn.Module):
    """Tail Propagation Operator with its parameters (Section 3.2 of the paper), on channels-last maps.

    Args:
        dim: Channels C.
        orders: Stable orders alpha of the mix, each in (0, 2].
        gate: Source of the mixing weights: "content" predicts them from the input, sigmoid(MLP(GAP(X))) for two orders, a
            softmax for more; "learned" has a weight for each channel; "fixed" uses equal weights; "spatial" predicts weights
            for every position, and needs an inverse transform for each order.
        order_mode: "fixed" keeps `orders`; "learned" trains an order for each entry, initialized to `orders`; "content"
            predicts 2 sigmoid(MLP(GAP(X))) for each channel, also initialized to `orders`.
        scale_init: Initial scale of every order, or one for each. Repeated orders start a factor of 4 apart. The
            default is close to no propagation; an initial scale of 1 cost two points in results/scale_init.csv.
        scale_per_channel: Learn a scale for each channel, initialized geometrically from 0.1 to 10 times `scale_init`.
        scale_mode: "softplus", k = softplus(theta) + offset, is the paper's. "length" learns a length for each channel and
            order, l = exp(theta), with k = l^alpha / alpha: a Gaussian then has standard deviation l and a Cauchy kernel
            half-width l, and a step of the optimizer changes every length by the same factor.
        lengths: Shortest and longest initial length for "length", spread geometrically over the channels. By default from 0.05,
            which changes little, to 16, but at most to half of `map_size`: a kernel as long as a map leaves only its mean.
        length_unit: "px", positions of the map, or "map", the side of the map (the geometric mean of height and width).
        gate_init: Initial gate logit. Channels take turns in preferring one of the orders by this much; 0 = equal weights.
        learned_gain: Multiply what differs from the mean of the map by g sqrt(1 + (4 l)^2), with a factor g learned for each
            channel, initially 1: white noise is then as strong after a kernel of length l as before it. Only for "length".
        normalized_share: Share of the channels whose output is normalized to variance 1 over the map of every image, around its
            mean. They are spread evenly, so that normalized and other channels have all lengths.
        gate_reduction: The hidden width of the gate's MLP is dim divided by this.
        map_size: (H, W) of the maps that the layer is made for, which bounds the initial lengths; it takes maps of any size.
    """

    needs_frequency_embedding: Final = False
    needs_map_size: Final = True
    no_decay: Final = ("theta", "log_gain", "gate_logits", "order_logits")
    scale_parameters: Final = ("theta",)
    spacing: float = 1.0  # distance of neighbouring positions, set by a backbone whose map is finer than usual
    _observed: Observed | None = None  # means of predicted values, while `observe` is on

    def __init__(
        self,
        dim: int,
        orders: Sequence[float] = (2.0, 1.0),
        gate: str = "content",
        order_mode: str = "fixed",
        scale_init: float | Sequence[float] = 0.02,
        scale_per_channel: bool = False,
        scale_mode: str = "softplus",
        lengths: tuple[float, float] | None = None,
        length_unit: str = "px",
        gate_init: float = 0.0,
        learned_gain: bool = False,
        normalized_share: float = 0.0,
        gate_reduction: int = 8,
        map_size: tuple[int, int] | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("gate", gate, GATES)
        check_choice("order_mode", order_mode, ORDER_MODES)
        check_choice("scale_mode", scale_mode, SCALE_MODES)
        check_choice("length_unit", length_unit, LENGTH_UNITS)
        check_at_least("dim", dim, 1)
        check_at_least("gate_reduction", gate_reduction, 1)
        self.dim, self.gate, self.order_mode = dim, gate, order_mode
        self.orders = checked_orders(orders)
        self.scale_init = _checked_scales(scale_init, self.orders)
        self.scale_mode, self.scale_per_channel = scale_mode, scale_per_channel or scale_mode == "length"
        self.lengths = _default_lengths(map_size) if lengths is None else _checked_lengths(lengths)
        self.length_unit, self.gate_init = length_unit, gate_init

        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        num_orders, hidden = len(self.orders), max(1, dim // gate_reduction)
        gate = gate if num_orders > 1 else "fixed"  # a single response has nothing to mix
        self.theta = nn.Parameter(torch.empty(num_orders, dim if self.scale_per_channel else 1, **dd))
        if learned_gain and scale_mode != "length":
            raise ValueError(f"learned_gain needs lengths, so scale_mode must be 'length', got {scale_mode!r}")
        self.log_gain = nn.Parameter(torch.empty(dim, **dd)) if learned_gain else None
        self.gate_logits = nn.Parameter(torch.empty(num_orders - 1, dim, **dd)) if gate == "learned" else None
        gate_mlp = {"content": PooledMLP, "spatial": PositionMLP}.get(gate)
        self.gate_mlp = None if gate_mlp is None else gate_mlp(dim, hidden, num_orders - 1, **dd)
        self.order_logits = nn.Parameter(torch.empty(num_orders, 1, **dd)) if order_mode == "learned" else None
        self.order_mlp = PooledMLP(dim, hidden, num_orders, **dd) if order_mode == "content" else None
        self.normalized_share = _checked_share(normalized_share)
        self.normalized: Tensor | None  # (C,): 1 where a channel is normalized
        self.register_buffer("normalized", torch.empty(dim, **dd) if normalized_share else None, persistent=False)
        self._responses = ResponseCache()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize scales and orders from the arguments, and gates to equal weights."""
        self.theta.copy_(self._initial_theta())
        # An order of exactly 2 is the limit of the sigmoid and cannot be reached; 1.99 still has a gradient.
        order_logits = torch.logit(torch.tensor(self.orders, dtype=torch.float64, device="cpu") / 2, eps=5e-3)[:, None]
        preferred = self._initial_gates()
        if self.normalized is not None:
            until = (torch.arange(self.dim + 1, dtype=torch.float64, device="cpu") * self.normalized_share - 1e-9).ceil()
            self.normalized.copy_(until.diff())
        if self.log_gain is not None:
            self.log_gain.zero_()
        if self.gate_logits is not None:
            self.gate_logits.copy_(preferred)
        if self.gate_mlp is not None:
            self.gate_mlp.reset_parameters()
            self.gate_mlp.fc2.bias.copy_(preferred.flatten())
        if self.order_logits is not None:
            self.order_logits.copy_(order_logits)
        if self.order_mlp is not None:
            self.order_mlp.reset_parameters()
            self.order_mlp.fc2.bias.copy_(order_logits.expand(-1, self.dim).flatten())

    def _initial_theta(self) -> Tensor:
        if self.scale_mode == "length":
            low, high = (math.log(length) for length in self.lengths)
            return torch.linspace(low, high, self.dim, dtype=torch.float64, device="cpu").expand(len(self.orders), -1)
        scales = torch.tensor(self.scale_init, dtype=torch.float64, device="cpu")[:, None]  # (K, 1)
        if self.scale_per_channel:
            scales = scales * torch.logspace(-1, 1, self.dim, dtype=torch.float64, device="cpu")  # (K, C)
        softplus = (scales - SCALE_OFFSET).clamp_min(1e-6)
        return softplus + torch.log(-torch.expm1(-softplus))  # the inverse of softplus, for large values too

    def _initial_gates(self) -> Tensor:
        """Logits of all orders but the last, (K - 1, C): channel c prefers order c mod K."""
        num_orders = len(self.orders)
        preferred = torch.arange(self.dim, device="cpu") % num_orders
        logits = self.gate_init * F.one_hot(preferred, num_orders).double().T  # (K, C)
        return logits[:-1] - logits[-1:]

    def scales(self) -> Tensor:
        """Propagation scales k, (K, 1) or (K, C): softplus(theta) + offset, or l^alpha / alpha with l = exp(theta)."""
        if self.scale_mode == "length":
            alpha = torch.tensor(self.orders, device=self.theta.device)[:, None]  # (K, 1)
            return torch.exp(alpha * at_least_float32(self.theta)) / alpha
        return F.softplus(at_least_float32(self.theta)) + SCALE_OFFSET

    def gain(self, spacing: float = 1.0) -> Tensor | None:
        """Factor of what differs from the mean, (C,), for lengths l in units of `spacing` positions; None = 1.

        The length of a channel is the geometric mean of those of its orders.
        """
        if self.log_gain is None:
            return None
        length = torch.exp(at_least_float32(self.theta).mean(0)) / spacing
        return torch.exp(at_least_float32(self.log_gain)) * torch.sqrt(1 + (LOST * length) ** 2)

    def weights(self, x: Tensor) -> Tensor | None:
        """Mixing weights for a batch: (B, K, C), (B, K, H, W, C), (K, C), or None for equal weights."""
        if self.gate_mlp is not None:
            return mixing_weights(self.gate_mlp(x), 1, len(self.orders))
        if self.gate_logits is not None:
            return mixing_weights(self.gate_logits, 0, len(self.orders))
        return None

    def stable_orders(self, x: Tensor) -> Tensor | tuple[float, ...]:
        """Stable orders for a batch: (B, K, C) if predicted, (K, 1) if learned, else the fixed numbers."""
        if self.order_mlp is not None:
            return 2 * torch.sigmoid(at_least_float32(self.order_mlp(x)))
        if self.order_logits is not None:
            return 2 * torch.sigmoid(at_least_float32(self.order_logits))
        return self.orders

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        weights, orders, spacing = self.weights(x), self.stable_orders(x), self.spacing_of(x)
        gain = self.gain(spacing)
        if self._observed is not None:
            self._observed.add(weights, orders)
        if weights is not None and isinstance(self.gate_mlp, PositionMLP):
            return tail_propagate_by_place(x, self.scales(), weights, orders, spacing, self.normalized, gain)
        kept = self._kept_responses(x)
        return tail_propagate(x, self.scales(), weights, orders, spacing, self.normalized, gain, kept)

    def _kept_responses(self, x: Tensor) -> ResponseCache | None:
        """The cache, where responses may be kept: without learning, and where they are the same for all images."""
        if self.training or self.order_mlp is not None or is_captured(x) or torch.is_grad_enabled() or not is_plain(x):
            return None
        return self._responses if x.device.type == "cpu" else None  # on a GPU the comparison would synchronize

    def train(self, mode: bool = True) -> Self:
        self._responses.clear()
        return super().train(mode)

    def observe(self, on: bool) -> None:
        """Start to keep the means of weights and orders that are predicted from the input, or forget them."""
        self._observed = Observed() if on else None

    @torch.no_grad()
    def learned(self) -> dict[str, Tensor]:
        """What the layer has learned, one value or one for each channel: scales, lengths, orders and mixing weights.

        Order k has the scale k_k and the length (alpha k)^(1/alpha), in the unit of the scales: the standard deviation sqrt(2k)
        of a Gaussian, the half-width k of a Cauchy kernel. `lambda` is the weight of the first order. Predicted values are
        means over the images since `observe(True)`, and are missing without any.
        """
        scales, values = self.scales(), {}
        predicted = None if self._observed is None else self._observed.orders.mean()
        orders = predicted if self.order_mlp is not None else self._own_orders()
        gain = self.gain()
        if gain is not None:
            values["gain"] = gain
        for k, scale in enumerate(scales):
            values[f"scale_{k}"] = scale
            if orders is not None:
                values[f"length_{k}"] = (orders[k] * scale) ** (1 / orders[k])
            if orders is not None and self.order_mode != "fixed":
                values[f"order_{k}"] = orders[k]
        weights = self._mean_weights()
        return values if weights is None else values | {"lambda": weights[0]}

    def _own_orders(self) -> Tensor:  # (K, 1)
        if self.order_logits is not None:
            return 2 * torch.sigmoid(at_least_float32(self.order_logits))
        return torch.tensor(self.orders, device=self.theta.device)[:, None]

    def _mean_weights(self) -> Tensor | None:  # (K, C)
        if self.gate_logits is not None:
            return mixing_weights(self.gate_logits, 0, len(self.orders))
        return None if self._observed is None else self._observed.weights.mean()

    def spacing_of(self, x: Tensor) -> float:
        """Distance of neighbouring positions in the unit of the scales."""
        if self.scale_mode == "length" and self.length_unit == "map":
            return x.flatten(1, -2).shape[1] ** (-1 / (x.ndim - 2))
        return self.spacing

    @torch.no_grad()
    def explain(self, x: Tensor) -> PropagationDetails:
        """The values inside one forward pass on x, (B, H, W, C); weights of every position are averaged over the map."""
        b, *sizes, c = x.shape
        weights = self.weights(x)
        if weights is not None and isinstance(self.gate_mlp, PositionMLP):
            weights = weights.flatten(2, -2).mean(2)
        mix = Mix.of(x, self.scales(), weights, self.stable_orders(x), self.spacing_of(x))
        frequencies, coefficients = Frequencies.in_order(x), dct(x)
        responses, mixed = mix.each_response(frequencies), mix.mixture(frequencies).whole()
        orders = [torch.as_tensor(o, device=x.device).expand(b, c) for o in mix.orders]
        return PropagationDetails(
            scales=mix.scales,
            weights=mix.weights.expand(b, -1, c),
            orders=torch.stack(orders, dim=1),
            responses=torch.stack([r.expand(b, *sizes, c) for r in responses], dim=1),
            mixed=mixed.expand(b, *sizes, c),
            coefficients=coefficients,
            gain=self._explained_gain(coefficients * mixed, mix.spacing),
        )

    def _explained_gain(self, coefficients: Tensor, spacing: float) -> Tensor | None:  # (B, C)
        learned = self.gain(spacing)
        if self.normalized is None:
            return None if learned is None else learned.expand(len(coefficients), -1)
        deviations = coefficients.clone().flatten(1, -2)
        deviations[:, 0] = 0
        learned = self.normalized.new_ones(self.dim) if learned is None else learned
        return learned * normalizing_gain(learned * deviations, self.normalized)[:, 0]

    def extra_repr(self) -> str:
        return f"dim={self.dim}, orders={self.orders}, gate={self.gate!r}, order_mode={self.order_mode!r}"


def _checked_scales(scale_init: float | Sequence[float], orders: tuple[float, ...]) -> tuple[float, ...]:
    if isinstance(scale_init, Sequence):
        scales = tuple(float(s) for s in scale_init)
    else:
        # Two responses of the same order would stay identical if they also started at the same scale.
        scales = tuple(scale_init * 4.0 ** orders[:k].count(order) for k, order in enumerate(orders))
    if len(scales) != len(orders):
        raise ValueError(f"scale_init needs one value or one for each order, got {len(scales)} for {len(orders)} orders")
    for scale in scales:
        if not 2 * SCALE_OFFSET < scale < math.inf:
            raise ValueError(f"scale_init must be finite and above {2 * SCALE_OFFSET:g}, got {scale}")
    return scales


def _checked_share(share: float) -> float:
    if not 0 <= share <= 1:
        raise ValueError(f"normalized_share must be between 0 and 1, got {share}")
    return share


def _default_lengths(map_size: tuple[int, int] | None) -> tuple[float, float]:
    return SHORTEST, LONGEST if map_size is None else min(LONGEST, max(1.0, min(map_size) / 2))


def _checked_lengths(lengths: tuple[float, float]) -> tuple[float, float]:
    low, high = (float(length) for length in lengths)
    if not 0 < low <= high < math.inf:
        raise ValueError(f"lengths must be two positive numbers, the shorter first, got {lengths}")
    return low, high
