"""The optimizer and the learning rate, as functions of the settings."""

import math
from dataclasses import dataclass

import torch
from timm.optim import param_groups_weight_decay
from torch import nn

from tailprop.engine.config import OptimConfig
from tailprop.engine.muon import Muon, is_matrix

__all__ = ["Schedule", "build_optimizer", "build_schedule"]


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then a decay to `min_lr` or by `gamma` at every milestone; counted in optimizer steps."""

    lr: float
    steps: int
    warmup_steps: int = 0
    min_lr: float = 0.0
    decay: str = "cosine"
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1

    def at(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.decay == "steps":
            return self.lr * self.gamma ** sum(step >= milestone for milestone in self.milestones)
        done = min(1.0, (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps))
        left = 1 - done if self.decay == "poly" else 0.5 * (1 + math.cos(math.pi * done))
        return self.min_lr + (self.lr - self.min_lr) * left


def build_schedule(optim: OptimConfig, steps_per_epoch: int, processes: int) -> Schedule:
    """The rate grows linearly with the global batch, from the base rate at `lr_batch` images."""
    scale = 1.0 if optim.lr_batch is None else optim.batch * optim.accumulate * processes / optim.lr_batch
    return Schedule(
        lr=optim.lr * scale,
        steps=optim.epochs * steps_per_epoch,
        warmup_steps=round(optim.warmup_epochs * steps_per_epoch) if optim.warmup_steps is None else optim.warmup_steps,
        min_lr=optim.min_lr,
        decay=optim.decay,
        milestones=tuple(round(epoch * steps_per_epoch) for epoch in optim.milestones),
        gamma=optim.gamma,
    )


def build_optimizer(
    model: nn.Module,
    weight_decay: float,
    scale_lr: float = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    matrix_lr: float | None = None,
) -> torch.optim.AdamW:
    """AdamW without decay on norms, biases and what the model excepts; propagation scales may learn at another rate.

    With `matrix_lr` it is Muon: matrices, those of output layers excepted, take orthogonal steps at so many times the rate.
    """
    skip: set[str] = getattr(model, "no_weight_decay", set)()
    groups = param_groups_weight_decay(model, weight_decay, no_weight_decay_list=skip)
    scales = {id(p) for name, p in model.named_parameters() if name.endswith("theta")}
    for group in groups:
        group["lr_scale"] = 1.0
        group["params"] = [p for p in group["params"] if id(p) not in scales]
    thetas = [p for p in model.parameters() if id(p) in scales]
    if thetas:
        groups.append({"params": thetas, "weight_decay": 0.0, "lr_scale": scale_lr})
    if matrix_lr is None:
        return torch.optim.AdamW(groups, betas=betas, fused=True)
    spared = {id(p) for name, p in model.named_parameters() if name in skip} | scales | _outputs(model)
    matrices = [p for p in model.parameters() if p.requires_grad and is_matrix(p) and id(p) not in spared]
    taken = {id(p) for p in matrices}
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in taken]
    groups.append({"params": matrices, "weight_decay": weight_decay, "lr_scale": matrix_lr, "matrices": True})
    return Muon(groups, betas=betas, fused=True)


def _outputs(model: nn.Module) -> set[int]:
    """Parameters of the layers whose outputs are answers: a classifier, or what a detector or a segmenter names."""
    if hasattr(model, "output_layers"):
        layers: list[nn.Module] = model.output_layers()  # type: ignore[operator]
    else:
        last = model.get_classifier() if hasattr(model, "get_classifier") else None  # type: ignore[operator]
        layers = [last] if isinstance(last, nn.Module) else []
    return {id(p) for layer in layers for p in layer.parameters()}
