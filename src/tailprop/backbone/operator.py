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
from typing import Any, Final, NamedTuple

import torch
import torch.fx
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from ._checks import check_at_least, check_choice
from .dct import dct2, frequency_grid, spectral_filter

__all__ = [
    "VARIANTS",
    "PropagationDetails",
    "TailPropagation",
    "stable_response",
    "tail_propagate",
    "tail_propagate_reference",
]

GATES: Final = ("content", "learned", "fixed")
ORDER_MODES: Final = ("fixed", "learned", "content")
SCALE_OFFSET: Final = 1e-4  # keeps k positive where softplus underflows

_ALL: Final = slice(None)

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
) -> Tensor:
    """Y = IDCT(sum_k w_k exp(-k_k rho^(alpha_k/2)) * DCT(X)): Eq. (7) of the paper, for any number of orders.

    Args:
        x: Channels-last map, (B, H, W, C).
        scales: Positive scales k, (K,) or one for each channel, (K, C). In pixels: a Gaussian has standard deviation
            sqrt(2k), a Cauchy kernel half-width k.
        weights: Mixing weights, (K,), (K, C) or (B, K, C), summing to 1 over K; equal weights by default. With two orders
            these are lambda and 1 - lambda. The last weight is computed as 1 minus the others, so that the mean of each
            channel is preserved exactly.
        orders: K numbers in (0, 2], or a tensor of shape (K,), (K, C) or (B, K, C) if they are learned.
        spacing: Distance of neighbouring positions in the unit of the scales; below 1 on a finer map.

    >>> photo = torch.rand(1, 64, 48, 3)
    >>> tail_propagate(photo, scales=(8.0, 2.0), weights=(0.3, 0.7)).shape
    torch.Size([1, 64, 48, 3])
    """
    _check_map(x)
    mix = _Mix.of(x, scales, weights, orders, spacing)
    return spectral_filter(x, lambda columns: mix.response(x, columns))  # (B, H, W, C)


def tail_propagate_reference(
    x: Tensor,
    scales: Tensor | Sequence[float],
    weights: Tensor | Sequence[float] | None = None,
    orders: Tensor | Sequence[float] = (2.0, 1.0),
    spacing: float = 1.0,
) -> Tensor:
    """The same operator in its simplest form: a branch for each order, each with its own transform pair, mixed in space.

    It always computes in float64, so that a difference from `tail_propagate` is an error of the fast path.
    """
    _check_map(x)
    dtype, x = x.dtype, x.double()
    _, h, w, _ = x.shape
    d_h, d_w = _cosine_matrix(h, x), _cosine_matrix(w, x)
    w_m = math.pi * torch.arange(h, dtype=x.dtype, device=x.device) / (h * spacing)
    w_n = math.pi * torch.arange(w, dtype=x.dtype, device=x.device) / (w * spacing)
    rho = w_m[:, None] ** 2 + w_n[None, :] ** 2  # (H, W)
    away_from_zero = torch.where(rho > 0, rho, 1.0)

    mix = _Mix.of(x, scales, weights, orders)
    last = 1 - mix.weights[:, :-1].sum(1, keepdim=True)
    shares = torch.cat([mix.weights[:, :-1], last], dim=1)
    y = torch.zeros_like(x)
    for k, order in enumerate(mix.orders):
        alpha = order[..., None, None] if isinstance(order, Tensor) else order  # (B, C, 1, 1) or a number
        decay = torch.where(rho > 0, away_from_zero ** (alpha / 2), 0.0)  # rho^(alpha/2), (B, C, H, W)
        response = torch.exp(-mix.scales[k, :, None, None] * decay)
        branch = d_h @ x.permute(0, 3, 1, 2) @ d_w.T  # DCT, (B, C, H, W)
        branch = d_h.T @ (response * branch) @ d_w  # inverse DCT
        y = y + shares[:, k, None, None, :] * branch.permute(0, 2, 3, 1)
    return y.to(dtype)


torch.fx.wrap("tail_propagate")  # a leaf function for symbolic tracing: inside it, sizes are numbers


def _cosine_matrix(n: int, like: Tensor) -> Tensor:
    """D[m, i] = c_m cos(pi m (2i + 1) / (2n)), entry by entry."""
    norm = [math.sqrt((1 if m == 0 else 2) / n) for m in range(n)]
    rows = [[norm[m] * math.cos(math.pi * m * (2 * i + 1) / (2 * n)) for i in range(n)] for m in range(n)]
    return torch.tensor(rows, dtype=like.dtype, device=like.device)


class _Mix(NamedTuple):
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
    ) -> "_Mix":
        dtype = torch.promote_types(x.dtype, torch.float32)
        _check_numbers(scales, weights)
        scales = torch.as_tensor(scales, dtype=dtype, device=x.device)
        scales = scales[:, None] if scales.ndim == 1 else scales
        num_orders = scales.shape[0]
        if weights is None:
            weights = [1 / num_orders] * num_orders
        weights = _to_bkc(torch.as_tensor(weights, dtype=dtype, device=x.device))
        split = _to_bkc(orders.to(dtype)).unbind(1) if isinstance(orders, Tensor) else _checked_orders(orders)
        if not num_orders == weights.shape[1] == len(split):
            raise ValueError(
                f"expected one scale, one weight and one order for each response, got {num_orders} scales, "
                f"{weights.shape[1]} weights and {len(split)} orders"
            )
        return cls(scales, weights, split, spacing)

    def each_response(self, x: Tensor, columns: slice = _ALL) -> list[Tensor]:
        """The response of each order alone at some columns of frequencies, K tensors (B or 1, H, columns, C or 1)."""
        h, w = x.shape[-3], x.shape[-2]
        rho = frequency_grid(h, w, x, self.spacing)[None, :, columns, None]
        orders = (o[:, None, None, :] if isinstance(o, Tensor) else o for o in self.orders)
        return [stable_response(rho, k, order) for k, order in zip(self.scales, orders, strict=True)]

    def response(self, x: Tensor, columns: slice = _ALL) -> Tensor:
        """sum_k w_k h_k, broadcastable to (B, H, W, C), as h_K + sum_(k<K) w_k (h_k - h_K): exactly 1 at rho = 0."""
        *others, last = self.each_response(x, columns)
        mixed = last
        for k, h in enumerate(others):
            mixed = torch.addcmul(mixed, self.weights[:, k, None, None, :], h - last)
        return mixed


def _check_map(x: Tensor) -> None:
    if x.ndim != 4:
        raise ValueError(f"expected a channels-last map (batch, height, width, channels), got shape {tuple(x.shape)}")


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


@dataclass(frozen=True)
class PropagationDetails:
    """Internal values of a `TailPropagation` for one batch, for diagnostics (Figures 3 and 4, Appendix G of the paper)."""

    scales: Tensor  # (K, 1) or (K, C): propagation scales k
    weights: Tensor  # (B, K, C): mixing weights
    orders: Tensor  # (B, K, C): stable orders alpha
    responses: Tensor  # (B, K, H, W, C): each order alone; H_G and H_C for the paper's operator
    mixed: Tensor  # (B, H, W, C): the applied response
    coefficients: Tensor  # (B, H, W, C): the DCT of the input

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
            softmax for more; "learned" has a weight for each channel; "fixed" uses equal weights.
        order_mode: "fixed" keeps `orders`; "learned" trains an order for each entry, initialized to `orders`; "content"
            predicts 2 sigmoid(MLP(GAP(X))) for each channel, also initialized to `orders`.
        scale_init: Initial scale of every order, or one for each. Repeated orders start a factor of 4 apart. The
            default is close to no propagation; an initial scale of 1 cost two points in results/scale_init.csv.
        scale_per_channel: Learn a scale for each channel, initialized geometrically from 0.1 to 10 times `scale_init`.
        gate_reduction: The hidden width of the gate's MLP is dim divided by this.
    """

    needs_frequency_embedding: Final = False
    no_decay: Final = ("theta", "gate_logits", "order_logits")
    scale_parameters: Final = ("theta",)
    spacing: float = 1.0  # distance of neighbouring positions, set by a backbone whose map is finer than usual

    def __init__(
        self,
        dim: int,
        orders: Sequence[float] = (2.0, 1.0),
        gate: str = "content",
        order_mode: str = "fixed",
        scale_init: float | Sequence[float] = 0.02,
        scale_per_channel: bool = False,
        gate_reduction: int = 8,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("gate", gate, GATES)
        check_choice("order_mode", order_mode, ORDER_MODES)
        check_at_least("dim", dim, 1)
        check_at_least("gate_reduction", gate_reduction, 1)
        self.dim, self.gate, self.order_mode = dim, gate, order_mode
        self.orders = _checked_orders(orders)
        self.scale_init = _checked_scales(scale_init, self.orders)
        self.scale_per_channel = scale_per_channel

        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        num_orders, hidden = len(self.orders), max(1, dim // gate_reduction)
        gate = gate if num_orders > 1 else "fixed"  # a single response has nothing to mix
        self.theta = nn.Parameter(torch.empty(num_orders, dim if scale_per_channel else 1, **dd))
        self.gate_logits = nn.Parameter(torch.empty(num_orders - 1, dim, **dd)) if gate == "learned" else None
        self.gate_mlp = PooledMLP(dim, hidden, num_orders - 1, **dd) if gate == "content" else None
        self.order_logits = nn.Parameter(torch.empty(num_orders, 1, **dd)) if order_mode == "learned" else None
        self.order_mlp = PooledMLP(dim, hidden, num_orders, **dd) if order_mode == "content" else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize scales and orders from the arguments, and gates to equal weights."""
        scales = torch.tensor(self.scale_init, dtype=torch.float64, device="cpu")[:, None]  # (K, 1)
        if self.scale_per_channel:
            scales = scales * torch.logspace(-1, 1, self.dim, dtype=torch.float64, device="cpu")  # (K, C)
        softplus = (scales - SCALE_OFFSET).clamp_min(1e-6)
        self.theta.copy_(softplus + torch.log(-torch.expm1(-softplus)))  # the inverse of softplus, for large values too
        # An order of exactly 2 is the limit of the sigmoid and cannot be reached; 1.99 still has a gradient.
        order_logits = torch.logit(torch.tensor(self.orders, dtype=torch.float64, device="cpu") / 2, eps=5e-3)[:, None]
        if self.gate_logits is not None:
            self.gate_logits.zero_()
        if self.gate_mlp is not None:
            self.gate_mlp.reset_parameters()
        if self.order_logits is not None:
            self.order_logits.copy_(order_logits)
        if self.order_mlp is not None:
            self.order_mlp.reset_parameters()
            self.order_mlp.fc2.bias.copy_(order_logits.expand(-1, self.dim).flatten())

    def scales(self) -> Tensor:
        """Propagation scales k = softplus(theta) + offset, (K, 1) or (K, C)."""
        return F.softplus(at_least_float32(self.theta)) + SCALE_OFFSET

    def weights(self, x: Tensor) -> Tensor | None:
        """Mixing weights for a batch: (B, K, C), (K, C), or None for equal weights."""
        if self.gate_mlp is not None:
            return _mixing_weights(self.gate_mlp(x), 1, len(self.orders))
        if self.gate_logits is not None:
            return _mixing_weights(self.gate_logits, 0, len(self.orders))
        return None

    def stable_orders(self, x: Tensor) -> Tensor | tuple[float, ...]:
        """Stable orders for a batch: (B, K, C) if predicted, (K, 1) if learned, else the fixed numbers."""
        if self.order_mlp is not None:
            return 2 * torch.sigmoid(at_least_float32(self.order_mlp(x)))
        if self.order_logits is not None:
            return 2 * torch.sigmoid(at_least_float32(self.order_logits))
        return self.orders

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        return tail_propagate(x, self.scales(), self.weights(x), self.stable_orders(x), self.spacing)

    @torch.no_grad()
    def explain(self, x: Tensor) -> PropagationDetails:
        """The values inside one forward pass on x, (B, H, W, C)."""
        b, h, w, c = x.shape
        mix = _Mix.of(x, self.scales(), self.weights(x), self.stable_orders(x), self.spacing)
        orders = [torch.as_tensor(o, device=x.device).expand(b, c) for o in mix.orders]
        return PropagationDetails(
            scales=mix.scales,
            weights=mix.weights.expand(b, -1, c),
            orders=torch.stack(orders, dim=1),
            responses=torch.stack([r.expand(b, h, w, c) for r in mix.each_response(x)], dim=1),
            mixed=mix.response(x).expand(b, h, w, c),
            coefficients=dct2(x),
        )

    def extra_repr(self) -> str:
        return f"dim={self.dim}, orders={self.orders}, gate={self.gate!r}, order_mode={self.order_mode!r}"


class PooledMLP(nn.Module):
    """MLP(GAP(X)) of Eq. (8): channels averaged over space, C -> hidden -> `outputs` values for each channel."""

    def __init__(self, dim: int, hidden: int, outputs: int, **dd: Any) -> None:
        super().__init__()
        self.outputs = outputs
        self.fc1 = nn.Linear(dim, hidden, **dd)
        self.fc2 = nn.Linear(hidden, outputs * dim, **dd)

    def reset_parameters(self) -> None:
        for fc in (self.fc1, self.fc2):
            trunc_normal_(fc.weight, std=0.02)
            nn.init.zeros_(fc.bias)

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, outputs, C)
        return self.fc2(F.gelu(self.fc1(x.mean((1, 2))))).unflatten(1, (self.outputs, -1))


def at_least_float32(v: Tensor) -> Tensor:
    """v in at least float32: gates, scales and responses are computed in full precision under autocast."""
    return v.to(torch.promote_types(v.dtype, torch.float32))


def _mixing_weights(logits: Tensor, dim: int, num_orders: int) -> Tensor:
    """Softmax over K orders of K - 1 logits, the last being 0: for two orders exactly sigmoid and its complement."""
    logits = at_least_float32(logits)
    if num_orders == 2:
        first = torch.sigmoid(logits)  # a softmax over pairs takes many times as long
        return torch.cat([first, 1 - first], dim=dim)
    return torch.softmax(F.pad(logits.movedim(dim, -1), (0, 1)), dim=-1).movedim(-1, dim)


def _checked_orders(orders: Sequence[float]) -> tuple[float, ...]:
    if len(orders) == 0:
        raise ValueError("orders is empty; give at least one, for example orders=(2.0, 1.0)")
    for order in orders:
        if not 0 < order <= 2:
            raise ValueError(f"a stable order must be in (0, 2], got {order}; 2 is Gaussian, 1 is Cauchy")
    return tuple(float(order) for order in orders)


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
