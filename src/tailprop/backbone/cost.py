"""Parameters and multiply-adds of a model, without running or allocating it."""

import math
from collections.abc import Sequence
from typing import Any

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
    """Multiply-adds for one image, of matrix products, convolutions and FFTs ("FLOPs" in this literature)."""
    parameter = next(model.parameters())
    image = torch.zeros(1, getattr(model, "in_chans", 3), height, width, device=parameter.device, dtype=parameter.dtype)
    with FlopCounterMode(display=False, custom_mapping=_FFTS) as counter, torch.no_grad():
        model(image)
    return counter.get_total_flops() // 2


def _fft_flops(shape: Sequence[int], dims: Sequence[int], *_: Any, **__: Any) -> int:
    return _flops(shape, dims)


def _real_fft_flops(shape: Sequence[int], dims: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any) -> int:
    whole = max(shape, out_shape, key=math.prod)  # the real side; the other has only half of the frequencies
    return _flops(whole, dims) // 2


def _flops(shape: Sequence[int], dims: Sequence[int]) -> int:
    """5 N log2 N operations for each FFT of N points, the usual count; half of them where input or output is real."""
    points = math.prod(shape[dim] for dim in dims)
    return round(5 * math.prod(shape) * math.log2(points))


_FFTS = {
    torch.ops.aten._fft_c2c: _fft_flops,
    torch.ops.aten._fft_r2c: _real_fft_flops,
    torch.ops.aten._fft_c2r: _real_fft_flops,
}
