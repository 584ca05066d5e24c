"""`tailprop bench`: images per second beside the peers, interleaved in one run.

Machines are noisy, and a peer measured at another time is another machine. So every round runs every model once, and the best
round of each counts; the ratio to the first model is the figure to quote.
"""

import importlib.util
import statistics
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import timm
import torch
import torch.nn.functional as F
from rich.table import Table
from torch import nn

from tailprop.engine.options import parse_options
from tailprop.engine.settings import setting
from tailprop.runtime.provenance import provenance
from tailprop.tasks import TASKS, find_spec
from tailprop.tasks.common.bench import check_bench, print_table, time_in_turn, use_cpu, write_rows
from tailprop.utils.validation import check_at_least

PUBLISHED_VHEAT = "vHeat-T (published code)"


@dataclass(frozen=True)
class Bench:
    """Images per second of several models, measured in turn."""

    models: tuple[str, ...] = ("tailprop_tiny", "convnext_tiny", "swin_tiny_patch4_window7_224", "vheat_tiny")
    """timm names; the first is the one the others are compared with."""
    vheat_code: Path | None = None
    """vHeat's published classification/models/vHeat.py, to be measured too."""
    modes: tuple[Literal["infer", "train"], ...] = ("infer", "train")
    """Forward passes without gradients, whole training steps (forward, backward, AdamW), or both."""
    batch_size: int = setting(8, aliases=("batch",))
    """Images at once."""
    size_px: int = 224
    """Side of the images."""
    rounds: int = 12
    """Rounds after one to warm up."""
    threads: int = 2
    """CPU threads."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to run: cpu or cuda."""
    out: Path | None = None
    """CSV to write."""

    def check(self) -> None:
        for name, least in (("batch_size", 1), ("rounds", 1), ("threads", 1), ("size_px", 32)):
            check_at_least(name, getattr(self, name), least)
        if not self.modes:
            raise ValueError("at least one mode is needed")
        check_bench(self.models, self.device)


@dataclass(frozen=True)
class Row:
    mode: str
    model: str
    best: float  # images per second
    median: float


def parse(args: list[str]) -> tuple[Any, Any]:
    """The module that measures, and its options: that of a task named first, or this one."""
    name = args[0] if args else ""
    if name not in TASKS:
        what = f"{(Bench.__doc__ or '').strip()} tailprop bench TASK measures whole networks: {', '.join(_measurable())}."
        return sys.modules[__name__], parse_options(Bench, args, "tailprop bench", what)
    spec = find_spec(name)
    if spec.bench is None:
        raise ValueError(f"there is no benchmark of {spec.title} beside that of the backbones; leave out {name!r}")
    return spec.module(spec.bench), parse_options(spec.part(spec.bench), args[1:], f"tailprop bench {name}")


def _measurable() -> list[str]:
    return [name for name in TASKS if find_spec(name).bench is not None]


def run(chosen: tuple[Any, Any]) -> None:
    module, options = chosen
    (measure_backbones if module is sys.modules[__name__] else module.run)(options)


def measure_backbones(options: Bench) -> None:
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
    """Some peers have to be told the size of the image."""
    return {"img_size": size_px} if timm.get_pretrained_cfg_value(name, "fixed_input_size") else {}


def _published_vheat(path: Path) -> nn.Module:
    if not path.is_file() or path.suffix != ".py":
        raise ValueError(f"no Python file {path}; --vheat-code wants classification/models/vHeat.py of vHeat's repository")
    spec = importlib.util.spec_from_file_location("published_vheat", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports from timm's old places
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
    table = Table("mode", "model", "img/s, best", "img/s, median", "first over this")
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
