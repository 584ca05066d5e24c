"""TailProp: content-adaptive light- and heavy-tailed propagation for vision.

Importing it registers `tailprop_*`, `vheat_*` and `waveformer_*` with timm. `load` loads a trained model of any task.
"""

from typing import TYPE_CHECKING, Any

import tailprop.backbone.registry  # noqa: F401 - registers the models
from tailprop.backbone.dct import dct2, frequency_grid, idct2
from tailprop.backbone.mixers import (
    MIXERS,
    AveragePool,
    DepthwiseConv,
    FourierMLP,
    GlobalFilter,
    HeatConduction,
    Mixer,
    NoPropagation,
    SelfAttention,
    WavePropagation,
    register_mixer,
)
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

if TYPE_CHECKING:
    from tailprop.tasks import load

__version__ = "0.1.0.dev0"
__all__ = [
    "MIXERS",
    "VARIANTS",
    "AveragePool",
    "DepthwiseConv",
    "FourierMLP",
    "GlobalFilter",
    "HeatConduction",
    "Mixer",
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
    "load",
    "register_mixer",
    "stable_response",
    "tail_propagate",
    "tail_propagate_reference",
    "warm_start",
]


def __getattr__(name: str) -> Any:
    """Import `load` lazily: the dependencies of the tasks are not part of the minimal install."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tailprop.utils.extras import explain_missing_extras

    with explain_missing_extras():
        from tailprop.tasks import load
    return load
