"""Time and memory of the operators over the number of tokens, with fitted exponents."""

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tailprop.backbone.mixers import build_mixer
from tailprop.runtime.provenance import provenance
from tailprop.studies.figures.inputs import Inputs, Picture, Tick
from tailprop.tasks.common.look import COLORS, HIDDEN, look, name_panels, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Measured", "draw", "exponent", "measure", "peak_bytes_of"]

MIXERS: Final = {
    "attention": "self-attention",
    "heat": "heat (vHeat)",
    "wave": "wave (WaveFormer)",
    "tailprop": "TPO (TailProp)",
}
SIDES: Final = (8, 16, 24, 32, 48, 64, 96, 128)
CHANNELS: Final = 64
ROUNDS: Final = (3, 15)  # of large and of small maps
SMALL: Final = 64  # largest side of a small map
FITTED: Final = 4  # the largest sizes, where constant costs no longer count
MARKERS: Final = "osv^"


@dataclass(frozen=True)
class Measured:
    """The cost of one operator at one size."""

    mixer: str
    side: int
    seconds: float  # CPU time of the fastest round
    peak_bytes: int

    @property
    def tokens(self) -> int:
        return self.side**2


def exponent(tokens: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of log cost over log tokens by least squares."""
    return float(np.polyfit(np.log(tokens), np.log(costs), 1)[0])


def peak_bytes_of(step: Callable[[], object]) -> int:
    """The largest sum of the tensors that a step holds at a time, beyond what was held before."""
    with torch.no_grad(), LiveBytes() as live:
        step()
    return live.peak


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations return, as long as they live; buffers inside a kernel are not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.users: dict[int, int] = {}  # tensors of each storage
        self.held = self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                key = tensor.untyped_storage()._cdata
                if key in self.users or key not in given:  # a view of an input costs nothing
                    self._add(tensor, key)
        return result

    def _add(self, tensor: Tensor, key: int) -> None:
        size = tensor.untyped_storage().nbytes()
        self.held += size if key not in self.users else 0
        self.peak = max(self.peak, self.held)
        self.users[key] = self.users.get(key, 0) + 1
        weakref.finalize(tensor, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self.users[key] -= 1
        if self.users[key] == 0:
            del self.users[key]
            self.held -= size


@look()
def draw(inputs: Inputs, tick: Tick) -> list[Picture]:
    measured = measure(inputs.seed, tick)
    figure = new_figure(9.2, 4.0)
    panels = figure.subplots(1, 2)
    costs: tuple[tuple[str, str, Callable[[Measured], float]], ...] = (
        ("time", "CPU time of one pass, ms", lambda m: 1000 * m.seconds),
        ("memory", "peak memory, MB", lambda m: m.peak_bytes / 1e6),
    )
    for axes, (title, label, cost) in zip(panels, costs, strict=True):
        _draw_cost(axes, measured, cost)
        axes.set(title=title, ylabel=label)
    name_panels(panels.tolist())
    where = provenance() | {"threads": "1"}
    rows = [
        dict(mixer=m.mixer, tokens=m.tokens, channels=CHANNELS, seconds=f"{m.seconds:.6g}", peak_bytes=m.peak_bytes) | where
        for m in measured
    ]
    rounds = f"{ROUNDS[0]} to {ROUNDS[1]} rounds"
    machine = f"one core of {where['hardware'].partition(' x ')[2]}"
    note = (
        f"One forward pass of each operator on a square map with {CHANNELS} channels, batch 1, float32, on {machine}: the "
        f"fastest of {rounds}, and the peak of the tensors alive. Exponents are fitted to the largest {FITTED} sizes. "
        "Attention is PyTorch's fused one, which never stores the N x N matrix: its memory is linear, its time is not. In "
        "heat, wave and TPO the products with the cosine basis grow as N^1.5, everything else as N."
    )
    return [Picture("complexity", "Complexity", note, figure, rows)]


@torch.inference_mode()
def measure(seed: int = 0, tick: Tick = lambda _: None) -> list[Measured]:
    """Every operator at every size, in turn, so that a slow moment of the machine hits all of them."""
    torch.manual_seed(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # then the time of the thread is that of the work, however busy the machine
    try:
        return _measure_all(tick)
    finally:
        torch.set_num_threads(threads)


def _measure_all(tick: Tick) -> list[Measured]:
    work = sum(side**2 for side in SIDES)
    found = []
    for side in SIDES:
        steps = {mixer: _step(mixer, side) for mixer in MIXERS}
        seconds: dict[str, list[float]] = {mixer: [] for mixer in MIXERS}
        for _ in range(1 + ROUNDS[side <= SMALL]):
            for mixer, step in steps.items():
                began = time.thread_time()
                step()
                seconds[mixer].append(time.thread_time() - began)
        found += [Measured(m, side, min(seconds[m][1:]), peak_bytes_of(step)) for m, step in steps.items()]
        tick(side**2 / work)
    return sorted(found, key=lambda m: (list(MIXERS).index(m.mixer), m.side))


def _step(mixer: str, side: int) -> Callable[[], Tensor]:
    module: nn.Module = build_mixer(mixer, CHANNELS).eval()
    x = torch.randn(1, side, side, CHANNELS)
    embedding = (torch.randn(side, side, CHANNELS) * 0.02,) if module.needs_frequency_embedding else ()
    return lambda: module(x, *embedding)


def _draw_cost(axes: "Axes", measured: Sequence[Measured], cost: Callable[[Measured], float]) -> None:
    for place, (mixer, title) in enumerate(MIXERS.items()):
        own = [m for m in measured if m.mixer == mixer]
        tokens, costs = [float(m.tokens) for m in own], [cost(m) for m in own]
        slope = exponent(tokens[-FITTED:], costs[-FITTED:])
        label = f"{title}: $N^{{{slope:.2f}}}$"
        axes.plot(tokens, costs, marker=MARKERS[place], markersize=8 - 1.4 * place, color=COLORS[place], label=label)
    axes.set(xscale="log", yscale="log", xlabel="tokens N (positions of the map)")
    axes.grid(which="major")
    axes.axvline(3136, color=HIDDEN, linewidth=0.8, linestyle=":")
    axes.text(3136, 0.01, " stage 1 at 224 px", transform=axes.get_xaxis_transform(), fontsize=8, color=HIDDEN)
    axes.legend()
