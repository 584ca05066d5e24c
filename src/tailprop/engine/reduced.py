"""Exports in INT8 and BF16, with the metric and the speed before and after."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from torch import Tensor, nn

from tailprop.engine.export import Exportable, OnnxNetwork, export_onnx, export_torch, in_bf16, save_checked
from tailprop.engine.exported import OnnxModel
from tailprop.engine.quantize import quantize

__all__ = ["export_bf16", "export_int8"]

_ROUNDS: Final = 10


def export_int8(item: Exportable, out: Path, count: int, metrics: dict[str, str]) -> tuple[float, list[str]]:
    """Write an INT8 ONNX file; returns the difference of the FP32 file from PyTorch, and lines of a report.

    Args:
        count: Number of calibration images.
        metrics: Metrics to compare, with their labels.
    """
    assert item.calibration is not None
    inputs = list(item.calibration(count))
    about = replace(item.about, precision="int8")
    with TemporaryDirectory() as folder:
        full = Path(folder, "fp32.onnx")
        error = export_onnx(item, full)
        threads = torch.get_num_threads()
        before = OnnxNetwork(OnnxModel(full, threads))
        lines: list[str] = []

        def write(path: Path) -> None:
            products = quantize(full, path, about, iter(inputs))
            lines.append(f"{products} products in INT8, calibrated with {len(inputs)} images of the training data")

        def check(path: Path) -> float:
            after = OnnxNetwork(OnnxModel(path, threads))  # raises if onnxruntime refuses it
            lines.extend(_compare(item, {"FP32": before, "INT8": after}, inputs[0], metrics))
            lines.append(f"size: FP32 {full.stat().st_size / 1e6:.1f} MB, INT8 {path.stat().st_size / 1e6:.1f} MB")
            return error

        return save_checked(out, "model.onnx", write, check), lines


def export_bf16(item: Exportable, out: Path, metrics: dict[str, str]) -> tuple[float, list[str]]:
    """Write a PyTorch program in BF16; returns its difference from the BF16 network, and lines of a report."""
    import copy

    half = in_bf16(replace(item, network=copy.deepcopy(item.network)))
    error = export_torch(half, out, bf16=True)
    networks = {"FP32": item.network, "BF16": half.network}
    return error, _compare(item, networks, item.example(len(item.sizes) - 1)[:1], metrics)


def _compare(item: Exportable, networks: dict[str, nn.Module], x: Tensor, metrics: dict[str, str]) -> list[str]:
    """Metric and speed of networks, one line each."""
    lines = []
    if metrics and item.evaluate is not None:
        found = {name: item.evaluate(network) for name, network in networks.items()}
        for metric, label in metrics.items():
            lines.append(f"{label}: " + ", ".join(f"{name} {values[metric]:.2f}" for name, values in found.items()))
    seconds = _best_seconds(networks, x)
    first = next(iter(seconds.values()))
    kind = "CPU time" if torch.get_num_threads() == 1 else "time"
    times = ", ".join(f"{name} {1e3 * s:.1f} ms ({first / s:.2f}x)" for name, s in seconds.items())
    lines.append(f"{kind} for {tuple(x.shape)}, {torch.get_num_threads()} threads: {times}")
    return lines


def _clock() -> Callable[[], float]:
    """The time of the processor with one thread, which other programs do not lengthen; with more, that on the wall."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


@torch.inference_mode()
def _best_seconds(networks: Mapping[str, Callable[[Tensor], Any]], x: Tensor) -> dict[str, float]:
    """The best of interleaved rounds after one warm-up round, so that the load of the machine meets all alike."""
    clock = _clock()
    best = dict.fromkeys(networks, float("inf"))
    for index in range(_ROUNDS + 1):
        for name, network in networks.items():
            began = clock()
            network(x)
            if index:
                best[name] = min(best[name], clock() - began)
    return best
