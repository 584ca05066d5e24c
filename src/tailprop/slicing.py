"""Work on a CPU in slices small enough for its caches.

A batch of eight 224-pixel images has MLP activations of 38 MB in the first stage of Tiny. Each is a fresh allocation that the
system hands out page by page and that no cache holds, and that costs more than the arithmetic. Samples do not depend on each
other, nor positions in an MLP, so a module may as well see a few at a time, with the same result. GPUs want the whole batch,
a backward pass needs every activation kept anyway, and a captured graph is not ours to cut: there the module is simply called.
"""

import math
from collections.abc import Callable
from typing import Final

import torch
import torch.fx
from torch import Tensor, nn

_GLOBAL_HOOKS: Final = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
SLICE_BYTES: Final = 10 << 20  # the fastest of 1, 2, 3, 5 and 10 MB for Tiny at batch 8 on a 32 MB last-level cache


def in_slices(f: Callable[[Tensor], Tensor], x: Tensor, growth: float, module: nn.Module, lead: int = 1) -> Tensor:
    """f(x), computed a few entries at a time where that is faster.

    Args:
        f: Treats each entry of the leading axes on its own.
        x: Input, (N, ...).
        growth: Size of the largest intermediate of f over the size of its input.
        module: Where f comes from. If hooks watch its inside, they see whole batches: nothing is sliced.
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
    if is_captured(x) or torch.is_grad_enabled():  # in training slices bought nothing, and cost small products
        return False
    return x.device.type == "cpu" and x.numel() > 0 and not is_hooked(module)


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody watches the module or anything inside it."""
    return any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in module.modules()
    ) or any(getattr(nn.modules.module, name, None) for name in _GLOBAL_HOOKS)


def is_captured(x: Tensor) -> bool:
    """Whether a graph is being recorded: by symbolic tracing, compile, export or jit tracing."""
    return isinstance(x, torch.fx.Proxy) or torch.compiler.is_compiling() or torch._C._is_tracing()
