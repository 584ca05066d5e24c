"""What an operator chose for an image: its mix, its responses, and scores of them (Section 4.3 and Appendix G of the paper).

Shapes: B batch, H height, W width, C channels, K orders, F frequencies. H_G is the first order and H_C stands for all others,
which is the paper's operator for two orders. An operator with a single order has nothing to mix: lambda is 1 if it is Gaussian,
and 0 otherwise.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tailprop.backbone.dct import frequency_grid
from tailprop.backbone.operator import PropagationDetails, TailPropagation, stable_response

__all__ = ["HIGHEST", "Scores", "gate_name", "gate_of", "high_frequency_share", "responses_at", "scores_of"]

HIGHEST: Final = math.sqrt(2) * math.pi  # sqrt(rho) of the highest frequency in both directions


@dataclass(frozen=True)
class Scores:
    """Values of each image for one operator, (B,)."""

    gate: Tensor  # lambda; for a predicted order alone, the order
    cauchy_share: Tensor  # effective Cauchy contribution, sum((1 - lambda) h_C E) / sum(h_mix E)
    response_share: Tensor  # response-only score, mean((1 - lambda) h_C / h_mix)
    high_frequency: Tensor  # share of the energy above a normalised radius of 0.5


def gate_name(operator: TailPropagation) -> str:
    """What distinguishes images for this operator: the mix, or the order if only that is predicted."""
    return "order \u03b1" if len(operator.orders) == 1 and operator.order_mode != "fixed" else "\u03bb"


def gate_of(operator: TailPropagation, details: PropagationDetails) -> Tensor:
    """lambda or the order, mean over channels, (B,)."""
    if gate_name(operator) != "\u03bb":
        return details.orders[:, 0].mean(1)
    if len(operator.orders) > 1:
        return details.lam.mean(1)
    return torch.full((len(details.coefficients),), float(operator.orders[0] == 2))


def scores_of(operator: TailPropagation, details: PropagationDetails) -> Scores:
    """The diagnostics of Appendix G, with E = |DCT(X)|^2."""
    energy = details.coefficients.double().square()  # (B, H, W, C)
    heavy, mixed = _heavy_part(operator, details).double(), details.mixed.double()
    return Scores(
        gate=gate_of(operator, details).double(),
        cauchy_share=(heavy * energy).sum((1, 2, 3)) / (mixed * energy).sum((1, 2, 3)),
        response_share=(heavy / mixed.clamp_min(1e-30)).mean((1, 2, 3)),
        high_frequency=high_frequency_share(energy),
    )


def _heavy_part(operator: TailPropagation, details: PropagationDetails) -> Tensor:
    """(1 - lambda) h_C: everything but the first order, (B, H, W, C); of a single order, all or nothing."""
    if len(operator.orders) == 1:
        return details.mixed * float(operator.orders[0] < 2)
    return (details.weights[:, 1:, None, None, :] * details.responses[:, 1:]).sum(1)


def high_frequency_share(energy: Tensor, radius: float = 0.5) -> Tensor:
    """Share of the energy (B, H, W, C) at sqrt(rho) of at least `radius` times the highest frequency, sqrt(2) pi, (B,)."""
    h, w = energy.shape[1:3]
    high = frequency_grid(h, w, energy).sqrt() >= radius * HIGHEST
    return (energy * high[None, :, :, None]).sum((1, 2, 3)) / energy.sum((1, 2, 3)).clamp_min(1e-300)


def responses_at(operator: TailPropagation, x: Tensor, frequencies: Tensor) -> Tensor:
    """The applied response of each image at frequencies sqrt(rho) of the map, mean over channels, (B, F)."""
    details = operator.explain(x)
    rho = (frequencies.to(x) / operator.spacing_of(x)).square()[None, :, None]  # (1, F, 1)
    mixed = torch.zeros((), dtype=x.dtype)
    for k, scale in enumerate(details.scales):
        response = stable_response(rho, scale, details.orders[:, k, None, :])  # (B, F, C)
        mixed = mixed + details.weights[:, k, None, :] * response
    return mixed.mean(-1).detach()  # before normalization, whose factor is that of an image, not of a frequency
