"""`tailprop bench detect`: multiply-adds, pictures per second and memory of Mask R-CNN over several backbones.

Weights are random, so every picture is given its full hundred detections (score 0): a trained detector has less to do. Rounds
are interleaved and the best of each counts, as in `tailprop bench`; memory is the most a process of its own has used.
"""

import csv
import multiprocessing
import resource
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from tailprop.checks import check_at_least, check_model
from tailprop.config import ModelConfig
from tailprop.cost import count_parameters
from tailprop.detector import Detector, DetectorConfig, create_detector, detector_macs
from tailprop.provenance import provenance
from tailprop.studies.bench import _time

PAPER_GMACS = {"tailprop_tiny": 271, "tailprop_small": 346, "tailprop_base": 432}  # the paper's, at 1280x800
PAPER_GMACS |= {"convnext_tiny": 262, "swin_tiny_patch4_window7_224": 267, "vheat_tiny": 272, "waveformer_tiny": 270}


@dataclass(frozen=True)
class BenchDetect:
    """Cost of Mask R-CNN for one picture, measured in turn."""

    models: tuple[str, ...] = ("tailprop_tiny", "convnext_tiny", "swin_tiny_patch4_window7_224", "vheat_tiny")
    """timm names of backbones; the first is the one the others are compared with."""
    height: int = 800
    """Height of the picture."""
    width: int = 1280
    """Width of the picture."""
    rounds: int = 5
    """Rounds after one to warm up; 0 = count multiply-adds only, at no cost."""
    memory: bool = True
    """Measure memory too, in a process for each model."""
    classes: int = 80
    """Classes of objects."""
    threads: int = 2
    """CPU threads."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to run."""
    detector: DetectorConfig = field(default_factory=lambda: DetectorConfig(score=0.0))
    out: Path | None = None
    """CSV to write."""

    def check(self) -> None:
        for name, least in (("height", 32), ("width", 32), ("rounds", 0), ("classes", 1), ("threads", 1)):
            check_at_least(name, getattr(self, name), least)
        self.detector.check()
        if not self.models:
            raise ValueError("at least one model is needed")
        for model in self.models:
            check_model(model)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("no CUDA device is visible; use --device cpu")


@dataclass(frozen=True)
class Row:
    model: str
    parameters: int
    macs: int
    best: float | None  # seconds for a picture
    median: float | None
    memory_gb: float | None


def run(options: BenchDetect) -> None:
    options.check()
    torch.set_num_threads(options.threads)
    rows = measure(options)
    where = provenance(options.device) | dict(dtype="float32", height=str(options.height), width=str(options.width))
    _print(rows, where)
    if options.out is not None:
        _write(options.out, rows, where)


def measure(options: BenchDetect) -> list[Row]:
    costs = {name: _count(name, options) for name in options.models}
    seconds: dict[str, list[float]] = {name: [] for name in options.models}
    if options.rounds > 0:
        seconds = _time_all(options)
    memory = {name: _memory(name, options) if options.memory and options.rounds > 0 else None for name in options.models}
    return [
        Row(name, *costs[name], min(took, default=None), statistics.median(took) if took else None, memory[name])
        for name, took in seconds.items()
    ]


def build(name: str, options: BenchDetect) -> Detector:
    """Random weights; the picture is taken at its own size."""
    short, long = sorted((options.height, options.width))
    detector, _ = create_detector(ModelConfig(name=name), options.classes, short, long, options.detector)
    return detector.eval()


def _count(name: str, options: BenchDetect) -> tuple[int, int]:
    with torch.device("meta"):
        detector = build(name, options)
    return count_parameters(detector), detector_macs(detector, options.height, options.width)


def _picture(options: BenchDetect) -> Tensor:
    return torch.rand(3, options.height, options.width, generator=torch.Generator().manual_seed(0)).to(options.device)


def _time_all(options: BenchDetect) -> dict[str, list[float]]:
    torch.manual_seed(0)
    picture = _picture(options)
    models = {name: build(name, options).to(options.device) for name in options.models}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for index in track(range(options.rounds + 1), description="detecting", transient=True):
        for name, model in models.items():

            def step(model: Detector = model) -> None:
                with torch.inference_mode():
                    model([picture])

            took = _time(step, options.device)
            if index > 0:
                seconds[name].append(took)
    return seconds


def _memory(name: str, options: BenchDetect) -> float:
    """The most memory a fresh process uses for one picture, in GB; a GPU's own on CUDA."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_use_memory, args=(name, options, queue))
    process.start()
    used: float = queue.get()
    process.join()
    return used


def _use_memory(name: str, options: BenchDetect, queue: "multiprocessing.Queue[float]") -> None:
    torch.set_num_threads(options.threads)
    model = build(name, options).to(options.device)
    with torch.inference_mode():
        model([_picture(options)])
    if options.device == "cuda":
        queue.put(torch.cuda.max_memory_allocated() / 1e9)
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        queue.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9)


def _print(rows: list[Row], where: dict[str, str]) -> None:
    table = Table("backbone", "params", "GMACs", "paper's", "img/s", "median", "first / this", "GB")
    table.columns[0].overflow = "fold"
    for row in rows:
        table.add_row(row.model, f"{row.parameters / 1e6:.1f} M", f"{row.macs / 1e9:.1f}", *_figures(rows, row))
    console = Console()
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in where.items()), style="dim")


def _figures(rows: list[Row], row: Row) -> list[str]:
    """The paper's multiply-adds, rate at best and in the median, the first model's rate over this one's, memory."""
    best = rows[0].best
    ratio = row.best / best if row.best is not None and best is not None else None
    rates = [None if s is None else 1 / s for s in (row.best, row.median)]
    numbers = [(rates[0], "{:.4g}"), (rates[1], "{:.4g}"), (ratio, "{:.3f}"), (row.memory_gb, "{:.2f}")]
    return [str(PAPER_GMACS.get(row.model, "")), *("" if n is None else text.format(n) for n, text in numbers)]


def _write(path: Path, rows: list[Row], where: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        head = [
            "model",
            "parameters",
            "macs",
            "paper_gmacs",
            "img_per_s_best",
            "img_per_s_median",
            "first_over_this",
            "memory_gb",
        ]
        writer.writerow([*head, *where])
        for row in rows:
            writer.writerow([row.model, row.parameters, row.macs, *_figures(rows, row), *where.values()])
