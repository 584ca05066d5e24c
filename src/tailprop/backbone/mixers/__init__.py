"""Mixers: modules that pass information between positions, (B, H, W, C) -> (B, H, W, C).

Shapes: B batch, H height, W width, C channels.

`MIXERS` holds every mixer by name: the variants of `TailPropagation` and the mixers it is compared with. To add one, write a
module and decorate it with `@register_mixer("name")`; every backbone, recipe and study then accepts that name.
"""

from .propagation import HeatConduction, WavePropagation, heat_conduct, resample_embedding, wave_propagate
from .registry import MIXERS, Mixer, build_mixer, register_mixer
from .spatial import AveragePool, DepthwiseConv, NoPropagation, SelfAttention
from .spectral import FourierMLP, GlobalFilter, fourier_mlp, global_filter, resample_filter

__all__ = [
    "MIXERS",
    "AveragePool",
    "DepthwiseConv",
    "FourierMLP",
    "GlobalFilter",
    "HeatConduction",
    "Mixer",
    "NoPropagation",
    "SelfAttention",
    "WavePropagation",
    "build_mixer",
    "fourier_mlp",
    "global_filter",
    "heat_conduct",
    "register_mixer",
    "resample_embedding",
    "resample_filter",
    "wave_propagate",
]
