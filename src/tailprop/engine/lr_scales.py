"""Learning rate factors of single parameters: layer decay in the backbone, and a factor for the head."""

from typing import Any

from timm.models import group_parameters
from torch import nn

from tailprop.engine.config import OptimConfig
from tailprop.engine.parts import body_of, head_parameters

__all__ = ["Groups", "split_by_lr"]

Groups = list[dict[str, Any]]


def split_by_lr(groups: Groups, model: nn.Module, optim: OptimConfig) -> Groups:
    """Split parameter groups so that all parameters of a group have one learning rate."""
    if optim.layer_decay == 1 and optim.head_lr == 1:
        return groups
    factors = _layer_factors(model, optim.layer_decay) if optim.layer_decay < 1 else {}
    for parameter in head_parameters(model) if optim.head_lr != 1 else ():
        factors[parameter] = factors.get(parameter, 1.0) * optim.head_lr
    split: dict[tuple[int, float], dict[str, Any]] = {}
    for number, group in enumerate(groups):
        for parameter in group["params"]:
            factor = factors.get(id(parameter), 1.0)
            scaled = {**group, "params": [], "lr_scale": group.get("lr_scale", 1.0) * factor}
            split.setdefault((number, factor), scaled)["params"].append(parameter)
    return list(split.values())


def _layer_factors(model: nn.Module, decay: float) -> dict[int, float]:
    """The factors of timm's `param_groups_layer_decay`, by id: decay ** (layers above). What follows a body is above it."""
    body = body_of(model)
    part = model if body is None else body
    if not hasattr(part, "group_matcher"):
        raise ValueError("optim.layer_decay: this model does not say what its layers are (group_matcher); leave it out")
    layers = group_parameters(part, part.group_matcher(coarse=False), reverse=True)  # type: ignore[operator]
    top = max(layers.values()) + (body is not None)
    return {id(p): decay ** (top - layers.get(name, top)) for name, p in part.named_parameters()}
