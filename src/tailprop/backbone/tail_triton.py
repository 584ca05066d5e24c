"""The operator by one Triton kernel, for maps up to 64x64 on a GPU: the switch, the gradients and the fallback.

Shapes: B batch, H height, W width, C channels, K orders in the mix, P parameters of an order.

The matrix products of `dct` write the map to memory after each of four products and after the response. Here one launch reads
the map and writes the result; `tail_kernels` says how. A program holds two tiles, U and V, of at most 4096 values in float32
and 16384 in bfloat16: one or four channels of a 64x64 map, 16 of a 16x16 map. That is 16 or 64 values of each in a thread.
Compiled for compute capability 8.0, the kernels take up to 72 KB of shared memory, of 99 or more there, and fit the 255
registers of a thread. Learned orders with normalized channels on maps of 32x64 spill most: 348 bytes of a thread.

The kernels agree with the reference in Triton's interpreter, and they compile for GPUs, but nobody has run them on one. So
the switch is off until someone turns it on: `TAILPROP_KERNEL=triton` in the environment, or `with tail_kernel("triton")`. Maps
that a kernel does not take, second derivatives, and all maps where a kernel cannot be built, are computed by the products.
"""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._checks import check_choice
from .dct import dct_basis
from .layers import is_captured

if TYPE_CHECKING:
    from .stable import Mix

__all__ = ["SWITCH", "TailKernel", "Tile", "chosen_kernel", "propagate", "tail_kernel", "usable"]

TailKernel = Literal["products", "triton"]
Products = Callable[[Tensor, "Mix", Tensor | None], Tensor]
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]  # of the map, scales, weights and orders

SWITCH: Final = "TAILPROP_KERNEL"  # in the environment: the kernel of a process
LARGEST_SIDE: Final = 64
TILE_VALUES: Final = {torch.float32: 4096, torch.bfloat16: 16384}  # more would spill the registers of 8 warps
STRIP_VALUES: Final = 4096  # of 16 columns of a tile, for the same reason
WARPS: Final = 8
_chosen: list[TailKernel] = []  # by `tail_kernel`, the innermost last
_failures: list[Exception] = []  # the first ends the use of the kernels


def chosen_kernel() -> TailKernel:
    """What maps are given to if it takes them."""
    if _chosen:
        return _chosen[-1]
    name = os.environ.get(SWITCH, "products")
    check_choice(SWITCH, name, get_args(TailKernel))
    return cast("TailKernel", name)


@contextmanager
def tail_kernel(name: TailKernel) -> Iterator[None]:
    """Compute the operator by "triton" where it can, or always by "products".

    >>> with tail_kernel("triton"):
    ...     usable(torch.randn(1, 128, 128, 8))
    False
    """
    check_choice("kernel", name, get_args(TailKernel))
    _chosen.append(name)
    try:
        yield
    finally:
        _chosen.pop()


def usable(x: Tensor, normalized: Tensor | None = None) -> bool:
    """Whether the kernel is switched on and takes this map.

    It takes maps on a GPU (in Triton's interpreter also on a CPU) in float32 or bfloat16, with sides up to 64. While a graph is
    captured, under torch.func and with forward gradients the products are used.
    """
    if is_captured(x) or chosen_kernel() == "products" or _failures or x.ndim != 4 or not _may_run_on(x.device):
        return False
    if x.numel() == 0 or max(x.shape[1:3]) > LARGEST_SIDE or _compute_dtype(x) not in TILE_VALUES:
        return False
    if type(x) not in (Tensor, torch.nn.Parameter) or (normalized is not None and normalized.requires_grad):
        return False
    is_transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    return not is_transformed and _kernels() is not None


def propagate(x: Tensor, mix: "Mix", normalized: Tensor | None, products: Products) -> Tensor:
    """`tail_propagate` by the kernel, for a map that is `usable` and whose normalized channels have no mean.

    Args:
        x: Map, (B, H, W, C).
        mix: Scales, weights and orders.
        normalized: 1 for normalized channels, else 0, (C,).
        products: The same operator by products, for second derivatives and where a kernel cannot be built.
    """
    learned = [order for order in mix.orders if isinstance(order, Tensor)]
    orders = torch.stack(learned, dim=1) if learned else None  # (B or 1, K, C or 1)
    packed = _pack(x, [mix.scales[None], mix.weights] + ([] if orders is None else [orders]))  # checks their shapes, too
    mask = None if normalized is None else normalized.expand(x.shape[-1]).contiguous()
    rest = _Rest(mix, packed, mask, products)
    x = x.to(_compute_dtype(x))
    try:
        return _TailPropagate.apply(x, mix.scales, mix.weights, orders, rest)
    except Exception as error:
        _give_up(error)
        return products(x, mix, normalized)


class Tile(NamedTuple):
    """What a program takes of a map: both sides, padded to powers of two, and some channels."""

    height: int
    width: int
    channels: int

    @classmethod
    def of(cls, h: int, w: int, c: int, dtype: torch.dtype) -> "Tile":
        height, width = max(16, _power_of_two(h)), max(16, _power_of_two(w))
        fitting = min(TILE_VALUES[dtype] // (height * width), STRIP_VALUES // (16 * height))
        return cls(height, width, min(fitting, _power_of_two(c)))


class _Rest(NamedTuple):
    """Arguments without gradients."""

    mix: "Mix"  # for its spacing, and for its orders if they are numbers
    packed: Tensor  # its scales, weights and learned orders
    normalized: Tensor | None
    products: Products


class _TailPropagate(torch.autograd.Function):
    """The kernel, with gradients for the map (B, H, W, C), scales (K, C or 1), weights and orders (B or 1, K, C or 1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: Tensor, weights: Tensor, orders: Tensor | None, rest: _Rest) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        _launch("forward_kernel", (x, y), rest)
        ctx.save_for_backward(x, scales, weights, orders)
        ctx.rest = rest
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        if not torch.is_grad_enabled():  # it is if these gradients will be differentiated again
            try:
                return *_gradients(inputs, dy, ctx.rest), None
            except Exception as error:
                _give_up(error)
        return *_gradients_by_products(inputs, ctx.needs_input_grad, dy, ctx.rest), None


def _gradients(inputs: Sequence[Tensor], dy: Tensor, rest: _Rest) -> Gradients:
    x, scales, weights, orders = inputs
    dx, grads = torch.empty_like(x), rest.packed.new_empty(len(x), *rest.packed.shape[1:])  # (B, P, K, C)
    _launch("backward_kernel", (x, dy.contiguous(), dx, grads), rest, SLOTS=_power_of_two(len(scales)))
    of_orders = None if orders is None else grads[:, 2].sum_to_size(orders.shape)
    return dx, grads[:, 0].sum(0).sum_to_size(scales.shape), grads[:, 1].sum_to_size(weights.shape), of_orders


def _gradients_by_products(inputs: Sequence[Tensor], needed: Sequence[bool], dy: Tensor, rest: _Rest) -> list[Tensor | None]:
    """The same gradients, recorded if gradients are enabled."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, because weights may have been computed from x, and gradients along that path are not ours.
        x, scales, weights, orders = views = [None if t is None else t.view_as(t) for t in inputs]
        mix = rest.mix._replace(scales=scales, weights=weights)
        mix = mix if orders is None else mix._replace(orders=orders.unbind(1))
        y = rest.products(x, mix, rest.normalized)
    wanted = [view for view, is_needed in zip(views, needed, strict=False) if is_needed]
    grads = iter(torch.autograd.grad(y, wanted, dy, create_graph=create_graph, allow_unused=True))
    return [next(grads) if is_needed else None for _, is_needed in zip(views, needed, strict=False)]


@torch.no_grad()
def _pack(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Scales, weights and learned orders, each (B or 1, K, C or 1), as one tensor (B or 1, P, K, C)."""
    b = len(x) if any(len(p) > 1 for p in parameters) else 1
    return torch.stack([p.expand(b, -1, x.shape[-1]) for p in parameters], dim=1)


def _launch(name: str, maps: Sequence[Tensor], rest: _Rest, **constants: int) -> None:
    """Run a kernel on maps, the first of which is the input: a program for each image and every few channels."""
    x, packed = maps[0], rest.packed
    b, h, w, c = x.shape
    tile = Tile.of(h, w, c, x.dtype)
    kernel = getattr(_kernels(), name)
    with torch.cuda.device_of(x):
        kernel[(b * math.ceil(c / tile.channels),)](
            *maps,
            dct_basis(h, x),
            dct_basis(w, x),
            packed,
            rest.normalized,
            h,
            w,
            c,
            packed.stride(0) if len(packed) > 1 else 0,
            float(rest.mix.spacing),
            K=packed.shape[2],
            ORDERS=tuple(order for order in rest.mix.orders if not isinstance(order, Tensor)) or None,
            H=tile.height,
            W=tile.width,
            C=tile.channels,
            **constants,
            num_warps=WARPS,
            num_stages=2,  # a strip is loaded while the one before it is multiplied
            enable_fp_fusion=True,
        )


def _give_up(error: Exception) -> None:
    """Leave everything to the products. Compiler, assembler, launcher and driver each raise errors of their own types."""
    if isinstance(error, torch.OutOfMemoryError):
        raise error
    _failures.append(error)
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    warnings.warn(f"the Triton kernel cannot be used here and is replaced by matrix products: {reason}", stacklevel=2)


def _compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products of x, which autocast may change."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) and x.dtype != torch.float64 else x.dtype


def _may_run_on(device: torch.device) -> bool:
    if device.type == "cpu":
        return os.environ.get("TRITON_INTERPRET") == "1"
    return device.type == "cuda" and _has_capability(device)


@lru_cache
def _has_capability(device: torch.device) -> bool:
    """Whether a GPU has bfloat16 products and 99 KB of shared memory for a program."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


@lru_cache
def _kernels() -> ModuleType | None:
    """The module of the kernels; None where there is no triton, as on macOS and Windows."""
    try:
        from . import tail_kernels
    except ImportError:
        return None
    return tail_kernels


def _power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()
