"""TailProp: content-adaptive light- and heavy-tailed propagation for vision.

Importing it registers `tailprop_*`, `vheat_*` and `waveformer_*` with timm.
"""

from tailprop.backbone.dct import dct2, frequency_grid, idct2
from tailprop.backbone.mixers import MIXERS, HeatConduction, NoPropagation, SelfAttention, WavePropagation
from tailprop.backbone.model import TailProp
from tailprop.backbone.operator import (
    VARIANTS,
    PropagationDetails,
    TailPropagation,
    stable_response,
    tail_propagate,
    tail_propagate_reference,
)
from tailprop.backbone.weights import WarmStartReport
from tailprop.engine.checkpoint import warm_start

__version__ = "0.1.0.dev0"
__all__ = [
    "MIXERS",
    "VARIANTS",
    "HeatConduction",
    "NoPropagation",
    "PropagationDetails",
    "SelfAttention",
    "TailProp",
    "TailPropagation",
    "WarmStartReport",
    "WavePropagation",
    "dct2",
    "frequency_grid",
    "idct2",
    "stable_response",
    "tail_propagate",
    "tail_propagate_reference",
    "warm_start",
]
