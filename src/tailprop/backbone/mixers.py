"""Mixers: modules that pass information between positions, (B, H, W, C) -> (B, H, W, C).

Shapes: B batch, H height, W width, C channels.

`MIXERS` holds every mixer by name: the variants of `TailPropagation` and the mixers it is compared with. To add one, write a
module and decorate it with `@register_mixer("name")`; every backbone, recipe and study then accepts that name.

Heat and wave compute their propagation time from a learned frequency embedding E, (H, W, C), shared by the blocks of a stage.
The stage owns it and passes it in, resampled to the size of the map.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from ._checks import check_choice
from .dct import frequency_grid, spectral_filter
from .operator import VARIANTS, TailPropagation, at_least_float32

__all__ = [
    "MIXERS",
    "HeatConduction",
    "Mixer",
    "NoPropagation",
    "SelfAttention",
    "WavePropagation",
    "build_mixer",
    "heat_conduct",
    "register_mixer",
    "resample_embedding",
    "wave_propagate",
]


class Mixer(Protocol):
    """The interface of a mixer, an `nn.Module` created as `Mixer(dim, **settings, device=..., dtype=...)`.

    Two further attributes are optional: `no_decay`, names of parameters without weight decay, and `scale_parameters`, names
    of propagation scales, which can have their own learning rate.
    """

    spacing: float  # distance of neighbouring positions; below 1 where output_stride makes a map finer than usual
    needs_frequency_embedding: bool  # whether `forward` takes the stage's embedding, (H, W, C), as a second argument

    def __call__(self, x: Tensor, *embedding: Tensor) -> Tensor: ...  # (B, H, W, C) -> (B, H, W, C)


MIXERS: Final[dict[str, Callable[..., nn.Module]]] = {
    name: partial(TailPropagation, **settings) for name, settings in VARIANTS.items()
}
M = TypeVar("M", bound=type[nn.Module])


def register_mixer(name: str) -> Callable[[M], M]:
    """Class decorator that registers a mixer under a name."""

    def register(mixer: M) -> M:
        if name in MIXERS:
            raise ValueError(f"a mixer {name!r} is already registered; choose another name")
        MIXERS[name] = mixer
        return mixer

    return register


def build_mixer(name: str, dim: int, **settings: Any) -> nn.Module:
    """A mixer by name; settings override those of a variant."""
    check_choice("mixer", name, MIXERS)
    return MIXERS[name](dim, **settings)


def heat_conduct(x: Tensor, k: Tensor, spacing: float = 1.0) -> Tensor:
    """Heat conduction (vHeat): response exp(-rho k) with a diffusivity for each frequency and channel, k (H, W, C)."""
    rho = frequency_grid(x.shape[-3], x.shape[-2], x, spacing)[..., None]
    return spectral_filter(x, lambda columns: torch.exp(-rho[:, columns] * at_least_float32(k[:, columns])))


def wave_propagate(x: Tensor, t: Tensor, speed: Tensor, damping: Tensor, spacing: float = 1.0) -> Tensor:
    """Damped wave (WaveFormer) after time t, (H, W, C), with initial values u_0 = v_0 = X^.

    Response e^(-a t/2) [cos(w_d t) + (1 + a/2) sin(w_d t) / w_d], w_d = sqrt(max(v^2 rho - (a/2)^2, eps)).
    """
    v, a = at_least_float32(speed), at_least_float32(damping)
    rho = frequency_grid(x.shape[-3], x.shape[-2], x, spacing)[..., None]

    def response(columns: slice) -> Tensor:
        now = at_least_float32(t[:, columns])
        w_d = torch.sqrt(torch.clamp(v**2 * rho[:, columns] - (a / 2) ** 2, min=1e-6))
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

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        damping = F.relu(self.damping)  # negative damping would let the wave grow without bound
        return wave_propagate(x, F.relu(self.to_t(embedding)), self.speed, damping, self.spacing)


@register_mixer("attention")
class SelfAttention(nn.Module):
    """Multi-head self-attention over all positions. The block provides the output projection."""

    needs_frequency_embedding: Final = False

    def __init__(
        self, dim: int, head_dim: int = 32, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        if head_dim < 1 or dim % head_dim:
            raise ValueError(f"attention needs channels divisible by head_dim, got {dim} channels and head_dim {head_dim}")
        self.head_dim = head_dim
        self.qkv = nn.Linear(dim, 3 * dim, **dd)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x.flatten(1, 2)).unflatten(-1, (3, -1, self.head_dim))  # (B, HW, 3, heads, head_dim)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, HW, head_dim)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).reshape_as(x)


@register_mixer("identity")
class NoPropagation(nn.Module):
    """The control: the block without a mixer; only its 3x3 convolution passes information between positions."""

    needs_frequency_embedding: Final = False

    def __init__(
        self,
        dim: int,  # noqa: ARG002 - every mixer has the same constructor
        device: torch.device | None = None,  # noqa: ARG002
        dtype: torch.dtype | None = None,  # noqa: ARG002
    ) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x
