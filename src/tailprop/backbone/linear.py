"""Linear layers of the backbone: on processors where PyTorch's FP32 product is slow, oneDNN computes it.

PyTorch computes FP32 products with MKL where it was built with it, and MKL uses AVX-512 on Intel's processors only. On an AMD
EPYC of 2024 (Zen 5) one thread makes 59 billion multiply-adds a second with MKL and 130 with oneDNN, equally exact. PyTorch
reaches oneDNN through an operator of its compiler, which has no gradient; `_Product` gives it one. Everywhere else, and while a
graph is captured, under autocast and under modes that count or trace, a layer is PyTorch's.

PyTorch keeps 1024 compiled products of each thread, one for each number of rows: half a gigabyte after a few hundred images of
different sizes. A step of training has less than a hundred, so 128 are kept (`LRU_CACHE_CAPACITY`, unless it is set).
"""

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

__all__ = ["CAPACITY", "SWITCH", "Linear", "linear_gelu", "onednn_is_faster"]

CAPACITY: Final = "LRU_CACHE_CAPACITY"  # read by PyTorch when a thread computes its first product with oneDNN
SWITCH: Final = "TAILPROP_ONEDNN"  # 0 = PyTorch's products everywhere, 1 = oneDNN's wherever it has the operator


class Linear(nn.Linear):
    """x W^T + b, (..., K) -> (..., N)."""

    is_plain_product = True  # it may be replaced by another form of the product

    def forward(self, x: Tensor) -> Tensor:
        if not _may_use_onednn(x, self.weight):
            return super().forward(x)
        if torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad):
            return _Product.apply(x, self.weight, self.bias)
        return _product(x, self.weight, self.bias)


def linear_gelu(linear: nn.Module, act: nn.Module, x: Tensor) -> Tensor:
    """act(linear(x)); without gradients oneDNN computes both in one pass, where it is used and the activation is GELU."""
    if type(linear) is not Linear or type(act) is not nn.GELU or act.approximate != "none" or torch.is_grad_enabled():
        return act(linear(x))
    if _has_hooks(linear) or _has_hooks(act) or not _may_use_onednn(x, linear.weight):
        return act(linear(x))
    return torch.ops.mkldnn._linear_pointwise(x, linear.weight, linear.bias, "gelu", [], "none")


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # (..., K), (N, K), (N,) -> (..., N)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Product(torch.autograd.Function):
    """The same with a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        product = F.linear if torch.is_grad_enabled() else _product  # gradients of gradients need a product that has them
        rows, flat = grad.flatten(0, -2), x.flatten(0, -2)  # (M, N), (M, K)
        to_x = product(grad, weight.mT) if ctx.needs_input_grad[0] else None
        to_weight = _gradient_of_weight(product, rows, flat) if ctx.needs_input_grad[1] else None
        to_bias = rows.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return to_x, to_weight, to_bias


def _gradient_of_weight(product: Any, rows: Tensor, flat: Tensor) -> Tensor:  # (M, N), (M, K) -> (N, K)
    """rows^T flat. oneDNN copies the first operand in transposed order, so that is the narrower one: 2.5 times faster."""
    return product(rows.mT, flat.mT) if rows.shape[1] <= flat.shape[1] else product(flat.mT, rows.mT).mT


def _may_use_onednn(x: Tensor, weight: Tensor) -> bool:
    if isinstance(x, torch.fx.Proxy) or torch.compiler.is_compiling() or torch._C._is_tracing():
        return False
    if x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32 or x.numel() == 0 or x.ndim < 2:
        return False
    if type(x) is not Tensor or torch.is_autocast_enabled("cpu") or _get_current_dispatch_mode() is not None:
        return False
    return torch._C._functorch.peek_interpreter_stack() is None and onednn_is_faster()


@cache
def onednn_is_faster() -> bool:
    """Whether oneDNN's product is used: a rule and no measurement, so that a run is the same each time."""
    is_faster = _is_wanted()
    if is_faster:
        os.environ.setdefault(CAPACITY, "128")
    return is_faster


def _is_wanted() -> bool:
    if os.environ.get(SWITCH) == "0" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if os.environ.get(SWITCH) == "1":
        return True
    return torch.backends.mkl.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512" and _is_amd()


def _is_amd() -> bool:
    info = Path("/proc/cpuinfo")
    vendor = info.read_text()[:4096] if info.exists() else platform.processor()
    return "AuthenticAMD" in vendor
