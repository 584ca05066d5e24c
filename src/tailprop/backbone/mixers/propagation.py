"""Heat and wave: the propagation operators of vHeat and WaveFormer.

Shapes: B batch, H height, W width, C channels.

Both compute their propagation time from a learned frequency embedding E, (H, W, C), shared by the blocks of a stage.
The stage owns it and passes it in, resampled to the size of the map.
"""

from typing import Any, Final

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from ..dct import Frequencies, spectral_filter
from ..operator import at_least_float32
from .registry import register_mixer

__all__ = ["HeatConduction", "WavePropagation", "heat_conduct", "resample_embedding", "wave_propagate"]


def heat_conduct(x: Tensor, k: Tensor, spacing: float = 1.0) -> Tensor:
    """Heat conduction (vHeat): response exp(-rho k) with a diffusivity for each frequency and channel, k (H, W, C)."""
    k = at_least_float32(k)
    return spectral_filter(x, lambda f: torch.exp(-f.squared(spacing) * f.take(k)))


def wave_propagate(x: Tensor, t: Tensor, speed: Tensor, damping: Tensor, spacing: float = 1.0) -> Tensor:
    """Damped wave (WaveFormer) after time t, (H, W, C), with initial values u_0 = v_0 = X^.

    Response e^(-a t/2) [cos(w_d t) + (1 + a/2) sin(w_d t) / w_d], w_d = sqrt(max(v^2 rho - (a/2)^2, eps)).
    """
    v, a = at_least_float32(speed), at_least_float32(damping)
    t = at_least_float32(t)

    def response(frequencies: Frequencies) -> Tensor:
        now = frequencies.take(t)
        w_d = torch.sqrt(torch.clamp(v**2 * frequencies.squared(spacing) - (a / 2) ** 2, min=1e-6))
        return torch.exp(-a * now / 2) * (torch.cos(w_d * now) + (1 + a / 2) * torch.sin(w_d * now) / w_d)

    return spectral_filter(x, response)


def resample_embedding(embedding: Tensor, like: Tensor) -> Tensor:
    """A frequency embedding (h, w, C) at the size of the map `like`, (B, H, W, C).

    Bilinear with aligned corners: the lowest and the highest frequency keep their values.
    """
    size = like.shape[-3:-1]
    if embedding.shape[:2] == size:
        return embedding
    channels_first = embedding.permute(2, 0, 1)[None]
    resampled = F.interpolate(at_least_float32(channels_first), size=size, mode="bilinear", align_corners=True)
    return resampled[0].permute(1, 2, 0).to(embedding.dtype)


for _leaf in ("heat_conduct", "wave_propagate", "resample_embedding"):  # leaf functions for symbolic tracing, as in `operator`
    torch.fx.wrap(_leaf)


@register_mixer("heat")
class HeatConduction(nn.Module):
    """vHeat's operator: k = ReLU(Linear(E)), then `heat_conduct`."""

    needs_frequency_embedding: Final = True
    spacing: float = 1.0

    def __init__(self, dim: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.to_k = nn.Linear(dim, dim, **dd)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return heat_conduct(x, F.relu(self.to_k(embedding)), self.spacing)


@register_mixer("wave")
class WavePropagation(nn.Module):
    """WaveFormer's operator: t = ReLU(Linear(E)), learned speed v and damping a, then `wave_propagate`."""

    needs_frequency_embedding: Final = True
    spacing: float = 1.0

    def __init__(self, dim: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.to_t = nn.Linear(dim, dim, **dd)
        self.speed = nn.Parameter(torch.empty(1, **dd))
        self.damping = nn.Parameter(torch.empty(1, **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.speed)
        nn.init.constant_(self.damping, 0.1)

    def learned(self) -> dict[str, Tensor]:
        return {"speed": self.speed, "damping": F.relu(self.damping)}

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        damping = F.relu(self.damping)  # negative damping would let the wave grow without bound
        return wave_propagate(x, F.relu(self.to_t(embedding)), self.speed, damping, self.spacing)
