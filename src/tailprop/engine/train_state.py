"""The state that a training step changes: model, EMA, optimizer and loss scaler."""

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from timm.layers import convert_sync_batchnorm
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tailprop.engine.config import OptimConfig, RunConfig
from tailprop.engine.optim import build_optimizer
from tailprop.engine.parts import freeze
from tailprop.runtime.distributed import World
from tailprop.runtime.precision import autocast

__all__ = ["TrainState"]

_SMALLEST_SCALE = 2.0**-14  # FP16 loss scale; it starts at 2**16 and is halved at every overflow


class TrainState:
    """Model, EMA, optimizer and loss scaler. `model` is the network; `wrapped` is the same network, in DDP if distributed."""

    def __init__(self, model: nn.Module, optim: OptimConfig, run: RunConfig, world: World, frozen: Sequence[str] = ()) -> None:
        self.optim, self.run, self.device = optim, run, world.device
        self.is_single = world.size == 1
        self.model = convert_batch_norms(model, world).to(self.device).to(memory_format=torch.channels_last)
        self.frozen = freeze(self.model, frozen)
        self.set_training_mode()
        if run.grad_checkpointing:
            self.model.set_grad_checkpointing(True)  # type: ignore[operator]
        self.ema = ModelEmaV3(self.model, decay=run.ema, use_warmup=True) if run.ema > 0 else None
        self.optimizer = build_optimizer(self.model, optim)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=run.precision == "fp16")
        if run.compile:
            # One graph per input size: PyTorch 2.14 cannot build the backward pass of a dynamic graph (its issue 185510).
            self.model.compile(dynamic=False)
        self.wrapped: nn.Module = self.model if self.is_single else self._wrap_ddp(self.model)

    def set_training_mode(self) -> None:
        """Training mode, except for frozen modules: their statistics stay as they are, and they drop nothing."""
        self.model.train()
        for module in self.frozen:
            module.eval()

    def _wrap_ddp(self, model: nn.Module) -> nn.Module:
        # A (C, 1, 3, 3) gradient has two equivalent strides, and DDP warns if it gets the other one.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    @property
    def evaluated(self) -> nn.Module:
        """The model to evaluate and export: the EMA, if there is one."""
        return self.ema.module if self.ema is not None else self.model

    def step(self, task: Any, batches: list[Any], lr: float, number: int) -> Tensor:
        """Run optimizer step `number` of the run on these batches; returns the loss, non-finite if a gradient is."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for k, batch in enumerate(batches):
            last = k == len(batches) - 1
            with nullcontext() if last or self.is_single else self.wrapped.no_sync():  # type: ignore[operator]
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
        # A non-finite gradient corrupts the weights even if the loss is finite; the sum reveals it before they are saved.
        return total if self.scaler.is_enabled() else total + 0 * norm

    def _check(self, norm: Tensor) -> None:
        if self.run.check_gradients and not self.scaler.is_enabled() and not math.isfinite(float(norm)):
            raise FloatingPointError("a gradient is not finite")

    @property
    def overflows(self) -> bool:
        """Whether gradients overflow FP16 even at the smallest loss scale."""
        return self.scaler.is_enabled() and self.scaler.get_scale() < _SMALLEST_SCALE

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "ema": self.ema.module.state_dict() if self.ema is not None else None,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"does not fit this model: {str(error).splitlines()[-1].strip()}") from None
        if self.ema is not None and state["ema"] is not None:
            self.ema.module.load_state_dict(state["ema"])
        self.scaler.load_state_dict(state["scaler"])


def convert_batch_norms(model: nn.Module, world: World) -> nn.Module:
    """Convert batch norms to SyncBatchNorm on several GPUs; UPerNet and DnCNN have some. CPUs do not support it."""
    return convert_sync_batchnorm(model) if world.device.type == "cuda" and world.size > 1 else model
