"""TailProp: content-adaptive light- and heavy-tailed propagation for vision.

Importing it registers `tailprop_*`, `vheat_*` and `waveformer_*` with timm. `load` loads a trained model of any task.

Nothing else is imported before it is used, neither timm nor PyTorch: the command line parses its options without them.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tailprop.utils.imports import after_import

if TYPE_CHECKING:
    from tailprop.backbone.dct import dct, dct2, frequency_grid, idct, idct2
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
    from tailprop.runtime.optimize import OptimizedModel, OptimizeReport, optimize
    from tailprop.tasks import load

__version__ = "0.1.0.dev0"
_REGISTRY: Final = "tailprop.backbone.registry"  # importing it registers the models
# module: the public names in it
_PUBLIC: Final = {
    "tailprop.backbone.dct": ("dct", "dct2", "frequency_grid", "idct", "idct2"),
    "tailprop.backbone.mixers": (
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
        "register_mixer",
    ),
    "tailprop.backbone.model": ("TailProp",),
    "tailprop.backbone.operator": (
        "VARIANTS",
        "PropagationDetails",
        "TailPropagation",
        "stable_response",
        "tail_propagate",
        "tail_propagate_reference",
    ),
    "tailprop.backbone.weights": ("WarmStartReport",),
    "tailprop.engine.checkpoint": ("warm_start",),
    "tailprop.runtime.optimize": ("OptimizeReport", "OptimizedModel", "optimize"),
    "tailprop.tasks": ("load",),
}
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
    "OptimizeReport",
    "OptimizedModel",
    "PropagationDetails",
    "SelfAttention",
    "TailProp",
    "TailPropagation",
    "WarmStartReport",
    "WavePropagation",
    "dct",
    "dct2",
    "frequency_grid",
    "idct",
    "idct2",
    "load",
    "optimize",
    "register_mixer",
    "stable_response",
    "tail_propagate",
    "tail_propagate_reference",
    "warm_start",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is used; the dependencies of `load` are not part of the minimal install."""
    if name == "backbone":
        import_module(_REGISTRY)
        return sys.modules["tailprop.backbone"]
    module = next((module for module, names in _PUBLIC.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tailprop.utils.extras import explain_missing_extras

    with explain_missing_extras():
        globals()[name] = value = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


after_import("timm", lambda: import_module(_REGISTRY))
