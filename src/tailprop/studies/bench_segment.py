"""`tailprop bench segment`: multiply-adds at 512x512 and pictures per second of UPerNet over several backbones.

Weights are random; a segmenter does the same work whatever it sees. Rounds are interleaved and the best of each counts, as in
`tailprop bench`. Multiply-adds are those of matrix products and convolutions; the auxiliary head works in training only.
"""

import csv
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tailprop.checks import check_at_least, check_model
from tailprop.config import ModelConfig
from tailprop.cost import count_parameters
from tailprop.provenance import provenance
from tailprop.segmenter import Segmenter, SegmenterConfig, create_segmenter, segmenter_macs
from tailprop.studies.bench import _time

SWIN: Final = "swin_tiny_patch4_window7_224"
PAPER_GMACS: Final = {  # at 512x512
    "tailprop_tiny": 234,
    "tailprop_small": 253,
    "tailprop_base": 291,
    "vheat_tiny": 235,
    "vheat_small": 254,
    "vheat_base": 293,
    "waveformer_tiny": 233,
    "waveformer_small": 252,
    "waveformer_base": 290,
    "convnext_tiny": 235,
    SWIN: 237,
}
COSTS: Final = ("model", "parameters", "macs", "paper_gmacs", "over_paper")
RATES: Final = ("img_per_s_best", "img_per_s_median", "first_over_this")


@dataclass(frozen=True)
class BenchSegment:
    """Cost of UPerNet for one picture, measured in turn."""

    models: tuple[str, ...] = ("tailprop_tiny", "tailprop_small", "tailprop_base", "convnext_tiny", SWIN, "vheat_tiny")
    """timm names of backbones; the first is the one the others are compared with."""
    height: int = 512
    """Height of the picture."""
    width: int = 512
    """Width of the picture."""
    rounds: int = 5
    """Rounds after one to warm up; 0 = count multiply-adds only, at no cost."""
    classes: int = 150
    """Classes of pixels."""
    threads: int = 2
    """CPU threads."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to run."""
    segmenter: SegmenterConfig = field(default_factory=SegmenterConfig)
    out: Path | None = None
    """CSV to write."""

    def check(self) -> None:
        for name, least in (("height", 32), ("width", 32), ("rounds", 0), ("classes", 1), ("threads", 1)):
            check_at_least(name, getattr(self, name), least)
        self.segmenter.check()
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


def run(options: BenchSegment) -> None:
    options.check()
    torch.set_num_threads(options.threads)
    rows = measure(options)
    where = provenance(options.device) | dict(dtype="float32", height=str(options.height), width=str(options.width))
    _print(rows, where)
    if options.out is not None:
        _write(options.out, rows, where)


def measure(options: BenchSegment) -> list[Row]:
    costs = {name: _count(name, options) for name in options.models}
    seconds = _time_all(options) if options.rounds > 0 else {name: [] for name in options.models}
    return [
        Row(name, *costs[name], min(took, default=None), statistics.median(took) if took else None)
        for name, took in seconds.items()
    ]


def _build(name: str, options: BenchSegment) -> Segmenter:
    return create_segmenter(ModelConfig(name=name), options.classes, options.segmenter)[0].eval()


def _count(name: str, options: BenchSegment) -> tuple[int, int]:
    with torch.device("meta"):
        segmenter = _build(name, options)
    return count_parameters(segmenter), segmenter_macs(segmenter, options.height, options.width)


def _time_all(options: BenchSegment) -> dict[str, list[float]]:
    torch.manual_seed(0)
    picture = torch.randn(1, 3, options.height, options.width, device=options.device)
    models = {name: _build(name, options).to(options.device).to(memory_format=torch.channels_last) for name in options.models}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for index in track(range(options.rounds + 1), description="labelling", transient=True):
        for name, model in models.items():

            def step(model: Segmenter = model) -> None:
                with torch.inference_mode():
                    model(picture)

            took = _time(step, options.device)
            if index > 0:
                seconds[name].append(took)
    return seconds


def _print(rows: list[Row], where: dict[str, str]) -> None:
    table = Table("backbone", "GMACs", "paper", "img/s, best", "median", "first/this")  # the file has more
    table.columns[0].no_wrap = True
    for row in rows:
        paper, _, *rates = _figures(rows, row)
        table.add_row(row.model, f"{row.macs / 1e9:.1f}", paper, *rates)
    console = Console()
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in where.items()), style="dim")


def _figures(rows: list[Row], row: Row) -> list[str]:
    """The paper's multiply-adds, ours over them, rate at best and in the median, the first model's rate over this one's."""
    paper, first = PAPER_GMACS.get(row.model), rows[0].best
    numbers = [
        None if paper is None else row.macs / 1e9 / paper,
        None if row.best is None else 1 / row.best,
        None if row.median is None else 1 / row.median,
        None if row.best is None or first is None else row.best / first,
    ]
    texts = ("{:.3f}", "{:.3f}", "{:.3f}", "{:.2f}")
    return [str(paper or ""), *("" if n is None else text.format(n) for n, text in zip(numbers, texts, strict=True))]


def _write(path: Path, rows: list[Row], where: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COSTS, *RATES, *where])
        for row in rows:
            writer.writerow([row.model, row.parameters, row.macs, *_figures(rows, row), *where.values()])
