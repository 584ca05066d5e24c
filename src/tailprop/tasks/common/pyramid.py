"""A backbone's four stages for detectors and segmenters: any model of timm with maps at 1/4, 1/8, 1/16 and 1/32."""

from typing import Any

import timm
from torch import nn

from tailprop.backbone.weights import WarmStartReport
from tailprop.engine.checkpoint import read_state_dict, warm_start
from tailprop.engine.config import ModelConfig
from tailprop.engine.run_settings import find_weights
from tailprop.tasks.common.models import check_model, create, model_arguments

__all__ = ["check_pyramid_model", "create_stages", "no_weight_decay_names", "start_from"]

PYRAMID = [4, 8, 16, 32]  # image over map


def check_pyramid_model(model: ModelConfig, purpose: str) -> None:
    check_model(model.name)
    if model.in_chans != 3:
        raise ValueError(f"{purpose} takes images of 3 channels, model.in_chans is {model.in_chans}")


def create_stages(model: ModelConfig, purpose: str) -> nn.Module:
    """The backbone, by timm's `features_only`; `purpose` says in a refusal what it cannot be used for."""
    settings = model_arguments(model)
    if model.name.startswith("swin"):
        settings.setdefault("strict_img_size", False)  # it refuses other sizes unless told
    stages = create(f"{model.name} as the backbone of {purpose}", lambda: _create_pyramid(model, settings))
    if stages.feature_info.reduction() != PYRAMID:
        raise ValueError(
            f"{model.name} has stages at 1/{stages.feature_info.reduction()} of the image; the pyramid wants 4, 8, 16, 32"
        )
    if hasattr(stages.model, "head"):
        stages.model.head = nn.Identity()  # some keep a norm there that no gradient reaches: distributed training would wait
    return stages


def _create_pyramid(model: ModelConfig, settings: dict[str, Any]) -> Any:
    stages = _create(model, settings)
    reductions = stages.feature_info.reduction()
    if reductions != PYRAMID and set(PYRAMID) <= set(reductions):  # ResNets have a map at 1/2 before them
        stages = _create(model, settings | {"out_indices": tuple(reductions.index(r) for r in PYRAMID)})
    return stages


def _create(model: ModelConfig, settings: dict[str, Any]) -> Any:
    return timm.create_model(model.name, features_only=True, feature_cls="getter", in_chans=model.in_chans, **settings)


def no_weight_decay_names(body: nn.Module, prefix: str) -> set[str]:
    """What the backbone excepts from weight decay, under the names it has in the whole model."""
    excluded: set[str] = getattr(body, "no_weight_decay", set)()
    return {f"{prefix}.{name}" for name in excluded}


def start_from(model: nn.Module, body: nn.Module, init: str | None, head: str) -> WarmStartReport | None:
    """Fill a model from a checkpoint of its own kind, heads too, known by parameters named `head`; else only its backbone."""
    if init is None:
        return None
    state = read_state_dict(find_weights(init))
    return warm_start(model if any(name.startswith(head) for name in state) else body, state)
