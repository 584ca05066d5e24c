"""How fast this machine computes the matrix products of a model on their own: what the model could reach at most.

Products are recorded in a forward pass: those of linear layers, of attention, of cosine transforms, and 1x1 convolutions. Each
shape is then timed alone, by PyTorch's product and by oneDNN's, and the faster of the two counts. What else a model does, such
as depthwise convolutions and norms, takes time beside them, so the share of the products is below one, unless the model's own
products are slower than the fastest.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tailprop.runtime.onednn import has_onednn_products, onednn_linear

__all__ = ["Products", "measure_products", "record_products"]

Clock = Callable[[], float]
Shape = tuple[int, int, int, int]  # number of products, M, K, N


@dataclass(frozen=True)
class Products:
    """The matrix products of a forward pass."""

    macs: int
    seconds: float  # for all of them, each timed alone


class _Recorder(TorchDispatchMode):
    """Counts the shapes of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Counter[Shape] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for shape in _shapes(func.overloadpacket, args):
            self.shapes[shape] += 1
        return func(*args, **(kwargs or {}))


def _shapes(operator: Any, args: tuple[Any, ...]) -> Iterator[Shape]:
    aten = torch.ops.aten
    if operator in (aten.mm, aten.bmm):
        yield _of(args[0], args[1])
    elif operator in (aten.addmm, aten.baddbmm):
        yield _of(args[1], args[2])
    elif operator is aten.convolution:
        x, weight, groups = args[0], args[1], args[8]
        if groups == 1 and weight.shape[2:] == (1, 1):
            positions = len(x) * math.prod(-(-side // step) for side, step in zip(x.shape[2:], args[3], strict=True))
            yield (1, positions, weight.shape[1], weight.shape[0])


def _of(a: Tensor, b: Tensor) -> Shape:
    count = len(a) if a.ndim == 3 else 1
    return count, a.shape[-2], a.shape[-1], b.shape[-1]


def record_products(model: nn.Module, images: Tensor) -> Counter[Shape]:
    """The shapes of the products of a forward pass, with how often each occurs."""
    with torch.no_grad(), _Recorder() as recorder:
        model(images)
    return recorder.shapes


def measure_products(
    shapes: Counter[Shape], dtype: torch.dtype, device: str, rounds: int = 4, clock: Clock = time.perf_counter
) -> Products:
    """Time the products of a forward pass; the best of several rounds for each shape."""
    seconds = sum(often * _best(shape, dtype, device, rounds, clock) for shape, often in shapes.items())
    return Products(sum(often * math.prod(shape) for shape, often in shapes.items()), seconds)


@torch.no_grad()
def _best(shape: Shape, dtype: torch.dtype, device: str, rounds: int, clock: Clock) -> float:
    count, m, k, n = shape
    a, b = torch.randn(count, m, k, dtype=dtype, device=device), torch.randn(count, k, n, dtype=dtype, device=device)
    routes: list[Callable[[], Tensor]] = [lambda: torch.bmm(a, b)]
    if count == 1:
        flat, weight = a[0], b[0].mT.contiguous()
        routes = [lambda: flat @ weight.mT]
        if device == "cpu" and dtype == torch.float32 and has_onednn_products():
            routes.append(lambda: onednn_linear(flat, weight, None))
    return min(_time(route, rounds, device, clock) for route in routes)


def _time(route: Callable[[], Tensor], rounds: int, device: str, clock: Clock) -> float:
    best = math.inf
    for _ in range(rounds + 1):
        began = clock()
        route()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, clock() - began)
    return best
