"""The training loop: one function, for every task."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from timm.optim import param_groups_weight_decay
from torch import Tensor, nn

__all__ = ["Schedule", "build_optimizer", "fit"]

Batch = Any


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then a cosine to `min_lr`; counted in optimizer steps."""

    lr: float
    steps: int
    warmup_steps: int = 0
    min_lr: float = 0.0

    def at(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.min_lr + (self.lr - self.min_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


@dataclass
class History:
    """What happened, epoch by epoch."""

    epochs: list[dict[str, float]] = field(default_factory=list)

    def column(self, name: str) -> list[float]:
        return [row[name] for row in self.epochs]


def build_optimizer(model: nn.Module, weight_decay: float, scale_lr: float = 1.0) -> torch.optim.AdamW:
    """AdamW without decay on norms, biases and what the model excepts; propagation scales may learn at another rate."""
    skip: set[str] = getattr(model, "no_weight_decay", set)()
    groups = param_groups_weight_decay(model, weight_decay, no_weight_decay_list=skip)
    scales = {id(p) for name, p in model.named_parameters() if name.endswith("theta")}
    for group in groups:
        group["lr_scale"] = 1.0
        group["params"] = [p for p in group["params"] if id(p) not in scales]
    thetas = [p for p in model.parameters() if id(p) in scales]
    if thetas:
        groups.append({"params": thetas, "weight_decay": 0.0, "lr_scale": scale_lr})
    return torch.optim.AdamW(groups)


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    batches: Callable[[int], Iterable[Batch]],
    loss: Callable[[nn.Module, Batch], Tensor],
    evaluate: Callable[[nn.Module], dict[str, float]],
    epochs: int,
    clip: float = 5.0,
) -> History:
    """Train for a number of epochs and evaluate after each.

    Args:
        batches: The batches of an epoch, by its number.
        loss: Mean loss of a batch.
        evaluate: Metrics of the model, in evaluation mode and without gradients.
        clip: Largest norm of the gradient.
    """
    history, step = History(), 0
    columns = ("{task.description}", BarColumn(), "{task.percentage:>3.0f} %", TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}")) as progress:
        bar = progress.add_task("training", total=schedule.steps, note="")
        for epoch in range(epochs):
            model.train()
            began, seen, total = time.perf_counter(), 0, 0.0
            for batch in batches(epoch):
                value = _step(model, optimizer, schedule.at(step), loss, batch, clip, where=f"epoch {epoch}, step {step}")
                step, seen, total = step + 1, seen + 1, total + value
                progress.update(bar, completed=step, note=f"epoch {epoch + 1}/{epochs}, loss {total / seen:.3f}")
            seconds = time.perf_counter() - began
            model.eval()
            with torch.inference_mode():
                metrics = evaluate(model)
            history.epochs.append(dict(epoch=epoch + 1, loss=total / max(1, seen), seconds=seconds, **metrics))
    return history


def _step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    lr: float,
    loss: Callable[[nn.Module, Batch], Tensor],
    batch: Batch,
    clip: float,
    where: str,
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
    value = loss(model, batch)
    if not torch.isfinite(value):
        raise ValueError(f"the loss became {value.item()} at {where}; lower the learning rate or look at that batch")
    optimizer.zero_grad(set_to_none=True)
    value.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return value.item()
