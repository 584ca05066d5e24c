"""A backbone's four stages for detectors and segmenters: any model of timm with maps at 1/4, 1/8, 1/16 and 1/32."""

from typing import Any

import timm
from torch import nn

import tailprop.backbone.model  # noqa: F401 - registers the models
from tailprop.engine.config import ModelConfig

__all__ = ["create_stages", "spared_from_decay"]

PYRAMID = [4, 8, 16, 32]  # picture over map


def create_stages(model: ModelConfig, purpose: str) -> nn.Module:
    """The backbone, by timm's `features_only`; `purpose` says in a refusal what it cannot be used for."""
    settings: dict[str, Any] = dict(model.args)
    if model.drop_path is not None:
        settings["drop_path_rate"] = model.drop_path
    if model.name.startswith("swin"):
        settings.setdefault("strict_img_size", False)  # it refuses other sizes unless told
    try:
        stages = _create(model, settings)
        reductions = stages.feature_info.reduction()
        if reductions != PYRAMID and set(PYRAMID) <= set(reductions):  # ResNets have a map at 1/2 before them
            stages = _create(model, settings | {"out_indices": tuple(reductions.index(r) for r in PYRAMID)})
    except (TypeError, RuntimeError, AssertionError, AttributeError) as error:
        raise ValueError(f"{model.name} cannot be the backbone of {purpose}: {str(error).splitlines()[0]}") from None
    if stages.feature_info.reduction() != PYRAMID:
        raise ValueError(
            f"{model.name} has stages at 1/{stages.feature_info.reduction()} of the picture; the pyramid wants 4, 8, 16, 32"
        )
    if hasattr(stages.model, "head"):
        stages.model.head = nn.Identity()  # some keep a norm there that no gradient reaches: distributed training would wait
    return stages


def _create(model: ModelConfig, settings: dict[str, Any]) -> Any:
    return timm.create_model(model.name, features_only=True, feature_cls="getter", in_chans=model.in_chans, **settings)


def spared_from_decay(body: nn.Module, prefix: str) -> set[str]:
    """What the backbone excepts from weight decay, under the names it has in the whole model."""
    spared: set[str] = getattr(body, "no_weight_decay", set)()
    return {f"{prefix}.{name}" for name in spared}
