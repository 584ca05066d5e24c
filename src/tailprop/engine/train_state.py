"""What learns: a model with its moving average, optimizer and loss scale, one optimizer step at a time."""

import math
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from timm.layers import convert_sync_batchnorm
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tailprop.engine.config import OptimConfig, RunConfig
from tailprop.engine.optim import build_optimizer
from tailprop.runtime.distributed import World
from tailprop.runtime.precision import autocast

__all__ = ["TrainState"]

_SMALLEST_SCALE = 2.0**-14  # of the loss under FP16; it starts at 2**16 and halves at every overflow


class TrainState:
    """Everything a step changes. `model` is the network itself, `wrapped` what a loss is taken of: the same under DDP."""

    def __init__(self, model: nn.Module, optim: OptimConfig, run: RunConfig, world: World) -> None:
        self.optim, self.run, self.device = optim, run, world.device
        self.alone = world.size == 1
        self.model = convert_batch_norms(model, world).to(self.device).to(memory_format=torch.channels_last).train()
        if run.grad_checkpointing:
            self.model.set_grad_checkpointing(True)  # type: ignore[operator]
        self.ema = ModelEmaV3(self.model, decay=run.ema, use_warmup=True) if run.ema > 0 else None
        self.optimizer = build_optimizer(self.model, optim)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=run.precision == "fp16")
        if run.compile:
            # A graph for each size: PyTorch 2.14 cannot make the backward pass of one for all sizes (its issue 185510).
            self.model.compile(dynamic=False)
        self.wrapped: nn.Module = self.model if self.alone else self._share(self.model)

    def _share(self, model: nn.Module) -> nn.Module:
        # A (C, 1, 3, 3) gradient has two equally good descriptions of its strides, and DDP warns of the other one.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    @property
    def evaluated(self) -> nn.Module:
        """What is evaluated and exported: the moving average, if there is one."""
        return self.ema.module if self.ema is not None else self.model

    def step(self, task: Any, batches: list[Any], lr: float, number: int) -> Tensor:
        """Learn from the batches of one optimizer step, the run's `number`th. The loss, not finite if a gradient is not."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for k, batch in enumerate(batches):
            last = k == len(batches) - 1
            with nullcontext() if last or self.alone else self.wrapped.no_sync():  # type: ignore[operator]
                with autocast(self.device, self.run.precision):
                    loss = task.loss(self.wrapped, batch) / len(batches)
                self.scaler.scale(loss).backward()
            total += loss.detach()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.optim.clip_grad or math.inf)
        self._check(norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.ema is not None:
            self.ema.update(self.model, number)
        # A gradient that is not finite spoils the weights though the loss is fine: it has to be seen before they are saved.
        return total if self.scaler.is_enabled() else total + 0 * norm

    def _check(self, norm: Tensor) -> None:
        if self.run.check_gradients and not self.scaler.is_enabled() and not math.isfinite(float(norm)):
            raise FloatingPointError("a gradient is not finite")

    @property
    def overflows(self) -> bool:
        """Whether FP16 cannot hold the gradients, however small the loss is scaled."""
        return self.scaler.is_enabled() and self.scaler.get_scale() < _SMALLEST_SCALE

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "ema": self.ema.module.state_dict() if self.ema is not None else None,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"does not fit this model: {str(error).splitlines()[-1].strip()}") from None
        if self.ema is not None and state["ema"] is not None:
            self.ema.module.load_state_dict(state["ema"])
        self.scaler.load_state_dict(state["scaler"])


def convert_batch_norms(model: nn.Module, world: World) -> nn.Module:
    """The model with batch norms that look at the batch of all GPUs; UPerNet and DnCNN have some. CPUs have no such layer."""
    return convert_sync_batchnorm(model) if world.device.type == "cuda" and world.size > 1 else model
