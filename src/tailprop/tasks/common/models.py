"""timm models by name: check, create, load weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import timm
import torch
from torch import Tensor, nn

import tailprop.backbone.registry  # noqa: F401 - registers our models
from tailprop.engine.checkpoint import read_state_dict
from tailprop.engine.config import ModelConfig
from tailprop.utils.errors import first_line, missing_memory
from tailprop.utils.text import did_you_mean

__all__ = ["check_finite", "check_model", "create", "for_loading", "load_weights", "model_arguments"]

M = TypeVar("M", bound=nn.Module)
C = TypeVar("C", bound=ModelConfig)
_LARGEST: Final = 10_000  # blocks of a stage, channels, sides
_FILES: Final = ("cache_dir", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict")


def check_model(name: str) -> None:
    if not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models(), otherwise="`tailprop models` lists the models of this package")
        raise ValueError(f"timm has no model {name!r}; {hint}")


def model_arguments(config: ModelConfig) -> dict[str, Any]:
    """Arguments of a model besides its name and its number of channels.

    Settings come with weights from elsewhere, so arguments that name other files or places to load from are refused.
    """
    if named := [name for name in config.args if name in _FILES]:
        raise ValueError(f"model.args {named[0]} is not supported; start from other weights with --model.init")
    if (largest := _largest(config.args)) > _LARGEST:  # building 2**31 layers would take forever
        raise ValueError(f"model.args has the number {largest}, which is too large for a size of a network")
    given = {} if config.drop_path is None else {"drop_path_rate": config.drop_path}
    return {**config.args, **given}


def _largest(value: Any) -> int:
    """The largest whole number in nested arguments."""
    if isinstance(value, dict | list | tuple):
        return max((_largest(item) for item in (value.values() if isinstance(value, dict) else value)), default=0)
    return value if isinstance(value, int) else 0


def for_loading(config: C) -> C:
    """The settings of a model whose weights are loaded next: nothing else is read or downloaded for it."""
    return replace(config, init=None, args={name: value for name, value in config.args.items() if name != "pretrained"})


def create(what: str, make: Callable[[], M]) -> M:
    """Create a network; a wrong argument raises a one-line error."""
    try:
        return make()
    except (ValueError, OSError, MemoryError):
        raise
    except Exception as error:  # an unknown argument, a tag without weights, a value of a wrong type: of many kinds
        if missing_memory(error):
            raise
        raise ValueError(f"cannot create {what}: {first_line(error)}") from None


def load_weights(model: M, weights: Path, name: str, state: dict[str, Tensor] | None = None) -> M:
    """Load all weights of a file into a model; returns it in evaluation mode."""
    try:
        model.load_state_dict(read_state_dict(weights) if state is None else state)
    except RuntimeError as error:
        *_, reason = str(error).splitlines()[:2] or [type(error).__name__]
        raise ValueError(f"{weights} does not fit {name}: {reason.strip()}") from None
    return model.to(memory_format=torch.channels_last).eval()  # as in training: another memory format rounds differently


def check_finite(output: Tensor, what: str = "the model's output") -> None:
    """Raise if an output is NaN or infinite: comparisons would drop it silently."""
    if not output.is_meta and not bool(torch.isfinite(output).all()):
        raise ValueError(f"{what} is not finite; use --precision fp32; if you do already, the weights are corrupt")
