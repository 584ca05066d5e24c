"""`tailprop bench transform`: the operator along one axis and over whole maps, in every way to transform an axis.

Each way is measured in every round, and the best round counts. The costs of the rule (`backbone/dct_route.py`) are fitted to
the lengths: a product gives the time of a multiply-add, and what a split and an FFT take beyond their products is counted in
this unit.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from tailprop.backbone.dct_product import transform
from tailprop.backbone.dct_route import Costs, best_split, choose_pieces, forced_pieces
from tailprop.backbone.dct_split import FFT, PRODUCT, multiply_adds
from tailprop.backbone.operator import stable_response
from tailprop.backbone.response import Frequencies, Mixture
from tailprop.backbone.stable import tail_propagate
from tailprop.runtime.provenance import provenance
from tailprop.studies.bench.transform_options import TransformBench
from tailprop.tasks.common.bench import print_table, time_in_turn, use_cpu, write_rows
from tailprop.tasks.common.figures import new_figure, save_figure
from tailprop.utils.terminal import Console, Table

# name: pieces of an axis of some length; None for the rule
WAYS: dict[str, Callable[[int], int] | None] = {
    "product": lambda _: PRODUCT,
    "split": best_split,
    "FFT": lambda _: FFT,
    "rule": None,
}
PLAIN = "recorded"  # by autograd: products up to 256 points and FFTs above, as on other devices


@dataclass(frozen=True)
class Timing:
    mode: str
    size: str  # length of an axis, or HEIGHTxWIDTH
    way: str
    ns: float  # per value, of the best round
    median: float


def run(options: TransformBench) -> None:
    options.check()
    memory = use_cpu(options.threads)
    timings = [timing for mode in options.modes for timing in _measure_all(options, mode)]
    where = provenance(options.device) | {"dtype": "float32", "channels": str(options.channels), "freed_memory": memory}
    _print(timings, where, options.device)
    if options.out is not None:
        rows = [{**asdict(t), "ns": f"{t.ns:.3f}", "median": f"{t.median:.3f}"} for t in timings]
        write_rows(options.out, rows, where)
        draw(timings, options.out.with_suffix(".png"))


def _measure_all(options: TransformBench, mode: str) -> list[Timing]:
    signals = {str(n): (max(1, options.positions // n), n, options.channels) for n in options.lengths}
    maps = {size: (1, *options.sides(size), options.channels) for size in options.maps}
    # Recorded transforms of a megapixel map take gigabytes, and what they take is known from the smaller ones.
    large = {size for size, shape in maps.items() if max(shape[1:3]) > 512}
    ways = {size: ["rule"] if size in large else [PLAIN, "rule"] for size in maps}
    return [*_measure(options, mode, signals, {size: list(WAYS) for size in signals}), *_measure(options, mode, maps, ways)]


def _measure(
    options: TransformBench, mode: str, shapes: Mapping[str, tuple[int, ...]], ways: Mapping[str, list[str]]
) -> list[Timing]:
    """Every size in every way, all of them in each round: a machine that slows down does so for all sizes."""
    maps = {size: torch.randn(shape, device=options.device) for size, shape in shapes.items()}
    steps = {f"{size} {way}": _step(x, way, mode) for size, x in maps.items() for way in ways[size]}
    timings = []
    for name, seconds in time_in_turn(steps, options.rounds, options.device, mode).items():
        size, _, way = name.partition(" ")
        per_value = 1e9 / maps[size].numel()
        timings.append(Timing(mode, size, way, min(seconds) * per_value, statistics.median(seconds) * per_value))
    return timings


def _step(x: Tensor, way: str, mode: str) -> Callable[[], None]:
    channels, device = x.shape[-1], x.device
    scales = torch.full((2, 1), 0.5, device=device)
    weights = torch.rand(len(x), 1, channels, device=device)
    inputs = [x, scales, torch.cat([weights, 1 - weights], dim=1)]
    propagate = _propagate_plainly if way == PLAIN else tail_propagate
    pieces = WAYS.get(way)

    def infer() -> None:
        with torch.inference_mode(), forced_pieces(pieces) if pieces else nullcontext():
            propagate(*inputs)

    def train() -> None:
        leaves = [v.detach().requires_grad_() for v in inputs]
        with forced_pieces(pieces) if pieces else nullcontext():
            torch.autograd.grad(propagate(*leaves), leaves, x)  # any gradient will do

    return infer if mode == "infer" else train


def _propagate_plainly(x: Tensor, scales: Tensor, weights: Tensor) -> Tensor:
    rho = Frequencies.in_order(x).squared()
    gauss, cauchy = stable_response(rho, scales[0], 2.0), stable_response(rho, scales[1], 1.0)
    response = Mixture((cauchy, gauss - cauchy), weights[:, :1]).whole()
    return transform(transform(x, x.ndim - 2) * response, x.ndim - 2, inverse=True)


def fit_costs(timings: Sequence[Timing], mode: str) -> Costs:
    """What a split and an FFT of an axis take beyond their products, in multiply-adds of the product.

    An FFT is slow at lengths with large prime factors. Those are the ones that hardly split, so they decide what it costs the
    rule.
    """
    ns = {(int(t.size), t.way): t.ns for t in timings if t.mode == mode and "x" not in t.size}
    lengths = sorted({n for n, _ in ns})
    unit, rest = _line(lengths, [ns[n, "product"] for n in lengths])

    def beyond(n: int, way: str, products: int) -> float:
        return (ns[n, way] - rest) / unit - products

    split = [n for n in lengths if best_split(n) != PRODUCT]
    close = [n for n in split if abs(ns[n, "split"] / ns[n, "product"] - 1) < 0.3] or split  # where the fold decides
    return Costs(
        fold=statistics.median(beyond(n, "split", multiply_adds(n, best_split(n))) for n in close),
        fft=statistics.median([beyond(n, "FFT", 0) for n in split if best_split(n) == 2] or [math.inf]),
    )


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope and intercept with the smallest relative errors."""
    weight = torch.tensor(y, dtype=torch.float64).reciprocal()[:, None]
    columns = torch.stack([torch.tensor(x, dtype=torch.float64), torch.ones(len(x), dtype=torch.float64)], dim=1)
    slope, intercept = torch.linalg.lstsq(columns * weight, torch.ones_like(weight)).solution.flatten().tolist()
    return slope, intercept


def _print(timings: list[Timing], where: dict[str, str], device: str) -> None:
    ways = [*WAYS, PLAIN]
    table = Table("mode", "size", *(f"{way}, ns" for way in ways), "the rule takes")
    for mode, size in dict.fromkeys((t.mode, t.size) for t in timings):
        ns = {t.way: t.ns for t in timings if (t.mode, t.size) == (mode, size)}
        chosen = [_name(choose_pieces(int(n), torch.device(device), mode == "train")) for n in size.split("x")]
        cells = [f"{ns[way]:.2f}" if way in ns else "" for way in ways]
        table.add_row(mode, size, *cells, ", ".join(dict.fromkeys(chosen)))
    print_table(table, where)
    for mode in dict.fromkeys(t.mode for t in timings):
        if len({t.size for t in timings if t.mode == mode and "x" not in t.size}) > 1:
            fitted = fit_costs(timings, mode)
            Console().print(f"fitted costs, {mode}, in multiply-adds: fold {fitted.fold:.0f}, FFT {fitted.fft:.0f}")


def _name(pieces: int) -> str:
    return {PRODUCT: "product", FFT: "FFT"}.get(pieces, f"split {pieces}")


def draw(timings: Sequence[Timing], path: Path) -> None:
    """Time per value by the length of an axis, and by the area of a map, in both modes."""
    modes = list(dict.fromkeys(t.mode for t in timings))
    figure = new_figure(10, 3.6 * len(modes))
    panels = figure.subplots(len(modes), 2, squeeze=False)
    for (left, right), mode in zip(panels, modes, strict=True):
        for axes, is_map in ((left, False), (right, True)):
            for way, style in zip([*WAYS, PLAIN], ["C3-", "C0-", "C2-", "k--", "C1-"], strict=True):
                shown = sorted(
                    (_points(t.size), t.ns) for t in timings if (t.mode, t.way, "x" in t.size) == (mode, way, is_map)
                )
                if shown:
                    axes.plot(*zip(*shown, strict=True), style, marker=".", label=way)
            axes.set(xscale="log", yscale="log", ylabel=f"{mode}, ns per value")
            axes.set_xlabel("side of a map, geometric mean" if is_map else "length of an axis, transformed alone")
            axes.grid(which="both", alpha=0.4)
            if axes.lines:
                axes.legend()
    save_figure(figure, path)


def _points(size: str) -> float:
    """The geometric mean of the sides."""
    sides = [int(n) for n in size.split("x")]
    return (sides[0] * sides[-1]) ** 0.5
