"""Layers of the backbone: an MLP computed in cache-sized slices, and stochastic depth that skips dropped samples.

On a CPU the input is processed in slices small enough for the caches. A batch of eight 224-pixel images has MLP activations of
38 MB in the first stage of Tiny. Each is a new allocation that is paged in by the system and fits no cache, which costs more
than the arithmetic. Samples are independent, and so are positions in an MLP, so a module can process a few at a time with the
same result. There is no slicing on GPUs, which are faster with the whole batch, with gradients, where every activation is kept
anyway, and while a graph is captured.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.fx
from timm.layers import DropPath, trunc_normal_
from torch import Tensor, nn

from .linear import Linear, linear_gelu

__all__ = ["MLP", "StochasticDepth", "in_slices", "init_module", "is_captured", "is_hooked", "to_nchw", "to_nhwc"]

_GLOBAL_HOOKS: Final = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
SLICE_BYTES: Final = 10 << 20  # the fastest of 1, 2, 3, 5 and 10 MB for Tiny at batch 8 on a 32 MB last-level cache


def to_nhwc(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def to_nchw(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def in_slices(f: Callable[[Tensor], Tensor], x: Tensor, growth: float, module: nn.Module, lead: int = 1) -> Tensor:
    """f(x), computed a few entries at a time where that is faster.

    Args:
        f: A function that treats each entry of the leading axes independently.
        x: Input, (N, ...).
        growth: Size of the largest intermediate of f over the size of its input.
        module: The module f belongs to. If it has hooks, nothing is sliced, so that they see whole batches.
        lead: Number of leading axes.
    """
    if not _may_slice(x, module):
        return f(x)
    slices = math.ceil(x.numel() * growth * x.element_size() / SLICE_BYTES)
    if slices <= 1:
        return f(x)
    y = torch.cat([f(part) for part in x.flatten(0, lead - 1).chunk(slices)])
    return y.view(*x.shape[:lead], *y.shape[1:])


def _may_slice(x: Tensor, module: nn.Module) -> bool:
    if is_captured(x) or torch.is_grad_enabled():  # in training, slices gained nothing and made the matrix products smaller
        return False
    return x.device.type == "cpu" and x.numel() > 0 and not is_hooked(module)


def is_hooked(module: nn.Module) -> bool:
    """Whether the module or any of its submodules has hooks."""
    return any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in module.modules()
    ) or any(getattr(nn.modules.module, name, None) for name in _GLOBAL_HOOKS)


def is_captured(x: Tensor) -> bool:
    """Whether a graph is being captured by symbolic tracing, compile, export or jit tracing."""
    return isinstance(x, torch.fx.Proxy) or torch.compiler.is_compiling() or torch._C._is_tracing()


class MLP(nn.Module):
    """Linear, GELU, linear over the channels of a channels-last map.

    The hidden layer is `ratio` times as wide as the input, so on a CPU it is computed in slices.
    """

    def __init__(self, dim: int, ratio: float = 4.0, **dd: Any) -> None:
        super().__init__()
        self.ratio = ratio
        self.fc1: nn.Linear = Linear(dim, int(dim * ratio), **dd)
        self.act = nn.GELU()
        self.fc2: nn.Linear = Linear(int(dim * ratio), dim, **dd)

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        return in_slices(self._forward, x, self.ratio, self, lead=3)

    def _forward(self, x: Tensor) -> Tensor:
        return self.fc2(linear_gelu(self.fc1, self.act, x))


class StochasticDepth(nn.Module):
    """x + branch(x), where the branch is dropped for each sample with probability `rate` in training.

    Computing a residual branch and then dropping it wastes time: a quarter of a step of Base, whose rates average 0.25. Samples
    are independent, so the branch is computed for the kept samples only. Output and gradients are those of the usual form,
    x + mask * branch(x) / keep.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.usual = DropPath(rate) if rate > 0 else nn.Identity()

    def forward(self, x: Tensor, branch: Callable[[Tensor], Tensor], module: nn.Module) -> Tensor:
        """`module` is the one the branch belongs to; if it has hooks, they see whole batches."""
        if is_captured(x) or not self.training or self.rate == 0 or is_hooked(module):
            return x + self.usual(branch(x))
        return self._skip(x, branch)

    def _skip(self, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        keep = 1 - self.rate
        kept = (torch.rand(len(x), device="cpu") < keep).nonzero().flatten()  # on the CPU: nonzero on a GPU would synchronize
        if len(kept) == len(x):
            return torch.add(x, branch(x), alpha=1 / keep)
        weight = 1 / keep
        if len(kept) == 0:  # every parameter still needs a gradient, or DDP would wait for it
            kept, weight = kept.new_zeros(1), 0.0
        kept = kept.to(x.device, non_blocking=True)
        return x.index_add(0, kept, branch(x[kept]).to(x.dtype), alpha=weight)


def init_module(module: nn.Module, name: str = "") -> None:  # noqa: ARG001 - timm passes the name
    """Linears as in vHeat (truncated normal, 0.02); other modules by their own `reset_parameters`."""
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif callable(reset := getattr(module, "reset_parameters", None)):
        reset()
