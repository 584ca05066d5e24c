"""`tailprop bench`: images per second compared with other backbones, interleaved in one run.

Timings on shared machines vary over time. So every round runs every model once, and the best round of each counts; the ratio to
the first model is the number to quote.
"""

import importlib.util
import statistics
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from torch import nn

from tailprop.runtime.provenance import provenance
from tailprop.studies.bench.options import Bench
from tailprop.tasks.common.bench import print_table, time_in_turn, use_cpu, write_rows
from tailprop.utils.terminal import Table

PUBLISHED_VHEAT = "vHeat-T (published code)"


@dataclass(frozen=True)
class Row:
    mode: str
    model: str
    best: float  # images per second
    median: float


def run(options: Bench) -> None:
    options.check()
    memory = use_cpu(options.threads)
    rows = [row for mode in options.modes for row in measure(options, mode)]
    where = provenance(options.device) | {
        "dtype": "float32",
        "batch_size": str(options.batch_size),
        "size_px": str(options.size_px),
    }
    where["freed_memory"] = memory
    _print(rows, where)
    if options.out is not None:
        write_rows(options.out, [_figures(rows, row) for row in rows], where)


def measure(options: Bench, mode: str) -> list[Row]:
    """Images per second of every model in one mode."""
    images = torch.randn(options.batch_size, 3, options.size_px, options.size_px, device=options.device)
    steps = {name: _step(model.to(options.device), images, mode) for name, model in _create(options).items()}
    seconds = time_in_turn(steps, options.rounds, options.device, f"{mode}, batch {options.batch_size}")
    return [
        Row(mode, name, options.batch_size / min(took), options.batch_size / statistics.median(took))
        for name, took in seconds.items()
    ]


def _create(options: Bench) -> dict[str, nn.Module]:
    models = {name: timm.create_model(name, **_size(name, options.size_px)) for name in options.models}
    if options.vheat_code is not None:
        models[PUBLISHED_VHEAT] = _published_vheat(options.vheat_code)
    return models


def _size(name: str, size_px: int) -> dict[str, int]:
    """Some models need the image size as an argument."""
    return {"img_size": size_px} if timm.get_pretrained_cfg_value(name, "fixed_input_size") else {}


def _published_vheat(path: Path) -> nn.Module:
    if not path.is_file() or path.suffix != ".py":
        raise ValueError(f"no Python file {path}; --vheat-code takes classification/models/vHeat.py of vHeat's repository")
    spec = importlib.util.spec_from_file_location("published_vheat", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports from deprecated timm modules
        spec.loader.exec_module(module)
    # Tiny, as in its configs/vHeat/vHeat_tiny_224.yaml
    return module.vHeat(depths=[2, 2, 6, 2], dims=96, drop_path_rate=0.1, post_norm=False)


def _step(model: nn.Module, images: torch.Tensor, mode: str) -> Callable[[], None]:
    if mode == "infer":
        model.eval()

        def infer() -> None:
            with torch.inference_mode():
                model(images)

        return infer

    model.train()
    labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return train


def _print(rows: list[Row], where: dict[str, str]) -> None:
    table = Table("mode", "model", "img/s, best", "img/s, median", "speed-up of the first")
    for row in rows:
        table.add_row(row.mode, row.model, f"{row.best:.2f}", f"{row.median:.2f}", f"{_ratio(rows, row):.2f}")
    print_table(table, where)


def _ratio(rows: list[Row], row: Row) -> float:
    first = next(r for r in rows if r.mode == row.mode)
    return first.best / row.best


def _figures(rows: list[Row], row: Row) -> dict[str, str]:
    return {
        "mode": row.mode,
        "model": row.model,
        "img_per_s_best": f"{row.best:.2f}",
        "img_per_s_median": f"{row.median:.2f}",
        "first_over_this": f"{_ratio(rows, row):.3f}",
    }
