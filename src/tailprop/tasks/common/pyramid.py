"""Backbones of detectors and segmenters: any timm model with feature maps at 1/4, 1/8, 1/16 and 1/32."""

from typing import Any

import timm
from torch import nn

from tailprop.backbone.weights import WarmStartReport
from tailprop.engine.checkpoint import warm_start
from tailprop.engine.config import ModelConfig
from tailprop.tasks.common.hub import initial_state
from tailprop.tasks.common.models import check_model, create, model_arguments

__all__ = ["check_pyramid_model", "create_stages", "no_weight_decay_names", "start_from"]

PYRAMID = [4, 8, 16, 32]  # strides of the feature maps


def check_pyramid_model(model: ModelConfig, purpose: str) -> None:
    check_model(model.name)
    if model.in_chans != 3:
        raise ValueError(f"{purpose} needs images with 3 channels, model.in_chans is {model.in_chans}; set it to 3")


def create_stages(model: ModelConfig, purpose: str) -> nn.Module:
    """Create the backbone with timm's `features_only`; `purpose` names the task in error messages."""
    settings = model_arguments(model)
    if model.name.startswith("swin"):
        settings.setdefault("strict_img_size", False)  # it raises for other sizes by default
    stages = create(f"{model.name} as the backbone of {purpose}", lambda: _create_pyramid(model, settings))
    if stages.feature_info.reduction() != PYRAMID:
        raise ValueError(
            f"{model.name} has feature maps with strides {stages.feature_info.reduction()}; the pyramid needs 4, 8, 16, 32"
        )
    if hasattr(stages.model, "head"):
        stages.model.head = nn.Identity()  # some have a norm there without a gradient, for which DDP would wait
    return stages


def _create_pyramid(model: ModelConfig, settings: dict[str, Any]) -> Any:
    stages = _create(model, settings)
    reductions = stages.feature_info.reduction()
    if reductions != PYRAMID and set(PYRAMID) <= set(reductions):  # ResNets also have a map at 1/2
        stages = _create(model, settings | {"out_indices": tuple(reductions.index(r) for r in PYRAMID)})
    return stages


def _create(model: ModelConfig, settings: dict[str, Any]) -> Any:
    return timm.create_model(model.name, features_only=True, feature_cls="getter", in_chans=model.in_chans, **settings)


def no_weight_decay_names(body: nn.Module, prefix: str) -> set[str]:
    """The parameters that the backbone excludes from weight decay, with their names in the whole model."""
    excluded: set[str] = getattr(body, "no_weight_decay", set)()
    return {f"{prefix}.{name}" for name in excluded}


def start_from(model: nn.Module, body: nn.Module, config: ModelConfig, head: str) -> WarmStartReport | None:
    """Warm start: the whole model if the checkpoint has parameters that start with `head`, else only the backbone."""
    if config.init is None:
        return None
    state, _ = initial_state(config)
    return warm_start(model if any(name.startswith(head) for name in state) else body, state)
