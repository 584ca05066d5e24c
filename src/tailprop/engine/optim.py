"""The optimizer and the learning rate schedule, built from the settings."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from timm.optim import param_groups_weight_decay
from torch import nn

from tailprop.engine.config import OptimConfig
from tailprop.engine.lr_scales import Groups, split_by_lr
from tailprop.engine.muon import Muon, is_matrix

__all__ = ["Schedule", "build_optimizer", "build_schedule"]


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then decay to `min_lr`, or by `gamma` at every milestone; all counts are optimizer steps."""

    lr: float
    steps: int
    warmup_steps: int = 0
    min_lr: float = 0.0
    sched: str = "cosine"
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1

    def at(self, step: float) -> float:
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.sched == "steps":
            return self.lr * self.gamma ** sum(step >= milestone for milestone in self.milestones)
        done = min(1.0, (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps))
        left = 1 - done if self.sched == "poly" else 0.5 * (1 + math.cos(math.pi * done))
        return self.min_lr + (self.lr - self.min_lr) * left


def build_schedule(optim: OptimConfig, steps_per_epoch: int, processes: int) -> Schedule:
    """The schedule of a run; the learning rate is scaled linearly with the global batch size, relative to `lr_base_size`."""
    steps = partial(_in_steps, steps_per_epoch=steps_per_epoch)
    scale = 1.0 if optim.lr_base_size is None else optim.batch_size * optim.grad_accum_steps * processes / optim.lr_base_size
    if not math.isfinite(optim.lr * scale):
        raise ValueError(f"optim.lr {optim.lr:g} times the global batch over optim.lr_base_size is not finite; lower it")
    return Schedule(
        lr=optim.lr * scale,
        steps=optim.epochs * steps_per_epoch,
        warmup_steps=steps("optim.warmup_epochs", optim.warmup_epochs) if optim.warmup_steps is None else optim.warmup_steps,
        min_lr=optim.min_lr,
        sched=optim.sched,
        milestones=tuple(steps("optim.milestones", epoch) for epoch in optim.milestones),
        gamma=optim.gamma,
    )


def _in_steps(name: str, epochs: float, steps_per_epoch: int) -> int:
    if not epochs * steps_per_epoch < 2**53:
        raise ValueError(f"{name} is too large: {epochs:g} epochs")
    return round(epochs * steps_per_epoch)


def build_optimizer(model: nn.Module, optim: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer by name; norms, biases and parameters that the model excludes have no weight decay."""
    return OPTIMIZERS[optim.name](model, _groups(model, optim), optim)


def _groups(model: nn.Module, optim: OptimConfig) -> Groups:
    """Groups with and without weight decay, and one for the propagation scales, which have their own learning rate."""
    groups = param_groups_weight_decay(model, optim.weight_decay, no_weight_decay_list=_no_weight_decay(model))
    scales = _scales(model)
    for group in groups:
        group["lr_scale"] = 1.0
        group["params"] = [p for p in group["params"] if id(p) not in scales]
    if scales:
        learned = [p for p in model.parameters() if p.requires_grad and id(p) in scales]
        groups.append({"params": learned, "weight_decay": 0.0, "lr_scale": optim.scale_lr})
    return groups


def _no_weight_decay(model: nn.Module) -> set[str]:
    return getattr(model, "no_weight_decay", set)()


def _scales(model: nn.Module) -> set[int]:
    """Parameters that a module names as its propagation scales."""
    return _named_by_modules(model, "scale_parameters")


def _named_by_modules(model: nn.Module, attribute: str) -> set[int]:
    return {id(getattr(module, name)) for module in model.modules() for name in getattr(module, attribute, ())}


def _adamw(model: nn.Module, groups: Groups, optim: OptimConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(split_by_lr(groups, model, optim), betas=optim.betas, fused=True)


def _muon(model: nn.Module, groups: Groups, optim: OptimConfig) -> torch.optim.Optimizer:
    """Muon: matrices, except those of output layers, get orthogonal updates with their own learning rate."""
    skip = _no_weight_decay(model)
    excluded = {id(p) for name, p in model.named_parameters() if name in skip} | _scales(model) | _outputs(model)
    excluded |= _named_by_modules(model, "not_matrices")
    matrices = [p for p in model.parameters() if p.requires_grad and is_matrix(p) and id(p) not in excluded]
    taken = {id(p) for p in matrices}
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in taken]
    how = {"weight_decay": optim.weight_decay, "lr_scale": optim.muon_lr_scale, "matrices": True}
    split = split_by_lr([*groups, {"params": matrices, **how}], model, optim)
    return Muon(split, betas=optim.betas, fused=True)


def _sgd(model: nn.Module, groups: Groups, optim: OptimConfig) -> torch.optim.Optimizer:
    split = split_by_lr(groups, model, optim)
    return torch.optim.SGD(split, lr=optim.lr, momentum=optim.betas[0], nesterov=optim.betas[0] > 0)


OPTIMIZERS: Final[dict[str, Callable[[nn.Module, Groups, OptimConfig], torch.optim.Optimizer]]] = {
    "adamw": _adamw,
    "muon": _muon,
    "sgd": _sgd,
}


def _outputs(model: nn.Module) -> set[int]:
    """Parameters of the output layers: the classifier, or what a detector or a segmenter lists in `output_layers`."""
    if hasattr(model, "output_layers"):
        layers: list[nn.Module] = model.output_layers()  # type: ignore[operator]
    else:
        last = model.get_classifier() if hasattr(model, "get_classifier") else None  # type: ignore[operator]
        layers = [last] if isinstance(last, nn.Module) else []
    return {id(p) for layer in layers for p in layer.parameters()}
