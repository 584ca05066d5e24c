"""Parameters and multiply-adds of a model, without running or allocating it."""

import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["count_macs", "count_parameters", "create_on_meta"]


def create_on_meta(name: str, **kwargs: object) -> nn.Module:
    """A timm model on the meta device: it has shapes but allocates no memory."""
    with torch.device("meta"):
        return timm.create_model(name, **kwargs).eval()


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def count_macs(model: nn.Module, height: int = 224, width: int = 224) -> int:
    """Multiply-adds for one image, of matrix products and convolutions ("FLOPs" in this literature)."""
    parameter = next(model.parameters())
    image = torch.zeros(1, getattr(model, "in_chans", 3), height, width, device=parameter.device, dtype=parameter.dtype)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    return counter.get_total_flops() // 2
