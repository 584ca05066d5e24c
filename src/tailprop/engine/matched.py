"""Matched initial weights: two models that differ in their mixer start from the same values wherever they share parameters.

Mixers draw different amounts of random numbers while a model is built, so the same seed alone gives other weights to everything
that is built after the first mixer.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tailprop.backbone.model import init_module
from tailprop.engine.config import ModelConfig
from tailprop.engine.task import Task
from tailprop.runtime.rng import mix_seeds

__all__ = ["build_matched"]


def build_matched(task: Task, resumed: bool = False) -> nn.Module:
    """The task's model with initial weights that do not depend on its mixer.

    What a model without mixers has, is taken from that model. The rest, mixers and frequency embeddings, is initialized from
    the seed and the name of the module, so that two mixers with equal parameters agree, too. Weights that `model.init` fills
    are left as they are.
    """
    seed = task.config.run.seed
    torch.manual_seed(seed)
    model = task.build_model(resumed)
    if resumed:  # the checkpoint has the weights
        return model
    torch.manual_seed(seed)
    fresh = model if task.config.model.init is None else task.build_model(resumed=True)  # without model.init
    drawn = {name: value.clone() for name, value in fresh.state_dict().items()}
    if (plain := _without_mixers(task)) is not None:
        _match(fresh, plain.state_dict(), seed)
    if fresh is not model:
        _copy(model, fresh.state_dict(), only={name for name, v in model.state_dict().items() if _same(v, drawn[name])})
    return model


def _without_mixers(task: Task) -> nn.Module | None:
    """The task's model with the identity as mixer; None for a model that has no choice of mixers."""
    other, config = copy.copy(task), task.config
    other.config = replace(config, model=_without_mixer(config.model))
    torch.manual_seed(config.run.seed)
    try:
        return other.build_model(resumed=True)
    except ValueError:
        return None


def _without_mixer(config: ModelConfig) -> ModelConfig:
    return replace(config, args={**config.args, "mixer": "identity", "mixer_args": {}})


@torch.no_grad()
def _match(model: nn.Module, shared: dict[str, Tensor], seed: int) -> None:
    for name, module in _to_initialize(model, shared):
        torch.manual_seed(mix_seeds(seed, *name.encode()))
        init_module(module)
    _copy(model, shared)


def _to_initialize(model: nn.Module, shared: dict[str, Tensor]) -> Iterator[tuple[str, nn.Module]]:
    """Modules with parameters that `shared` does not have, and mixers; children before parents, which may adjust them."""
    for name, module in reversed(list(model.named_modules())):
        own = {f"{name}.{parameter}".lstrip("."): value for parameter, value in module.named_parameters(recurse=False)}
        is_mixer = hasattr(module, "needs_frequency_embedding")
        if is_mixer or any(not _same_shape(value, shared.get(key)) for key, value in own.items()):
            yield name, module


def _copy(model: nn.Module, values: dict[str, Tensor], only: set[str] | None = None) -> None:
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if _same_shape(value, values.get(name)) and (only is None or name in only):
                value.copy_(values[name])


def _same_shape(value: Tensor, other: Any) -> bool:
    return other is not None and value.shape == other.shape


def _same(value: Tensor, other: Tensor) -> bool:
    return _same_shape(value, other) and torch.equal(value, other)
