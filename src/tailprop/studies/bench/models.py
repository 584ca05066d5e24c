"""`tailprop bench`: images per second compared with other backbones, interleaved in one run.

Timings on shared machines vary over time. So every round runs every model once, and the best round of each counts; the ratio to
the first model is the number to quote. A model that fails under a setting is a line of the table.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import nn

from tailprop.backbone.cost import count_macs, count_parameters
from tailprop.runtime.load import OtherLoad
from tailprop.runtime.provenance import provenance
from tailprop.studies.bench.figure import draw_rates
from tailprop.studies.bench.memory import step_gb
from tailprop.studies.bench.options import Bench
from tailprop.studies.bench.products import Products, measure_products, record_products
from tailprop.studies.bench.rows import Row, is_done, print_rows, read_rows, to_cells
from tailprop.studies.bench.settings import Setting, settings_of
from tailprop.studies.bench.steps import PUBLISHED_VHEAT, Step, create_model, create_step, random_images
from tailprop.tasks.common.bench import time_in_turn, use_cpu, write_rows
from tailprop.utils.errors import first_line
from tailprop.utils.text import say

__all__ = ["run"]

_BUSY = 0.3  # cores used by other programs above which a warning is printed


def run(options: Bench) -> None:
    options = options.resolved()
    options.check()
    freed_memory = use_cpu(max(options.threads))
    names = [*options.models, *([PUBLISHED_VHEAT] if options.vheat_code is not None else [])]
    settings = list(settings_of(options))
    cells = read_rows(options.out) if options.resume and options.out is not None else []
    todo = [setting for setting in settings if not is_done(cells, setting, names)]
    watch = _Watch(todo)
    for setting in todo:
        watch.announce(setting)
        rows = measure(options, setting, names)
        where = provenance(options.device) | setting.columns() | {"clock": options.clock, "freed_memory": freed_memory}
        print_rows(rows, setting, where)
        cells += to_cells(rows, where)
        if options.out is not None:
            write_rows(options.out, cells)
    if options.figure is not None:
        draw_rates(cells, options.figure)
        say(f"{options.figure} shows images per second over multiply-adds and parameters")


class _Watch:
    """Says which setting is next and how long the rest will take, by the work that is done."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self.settings, self.began, self.count, self.done = settings, time.monotonic(), 0, 0.0

    def announce(self, setting: Setting) -> None:
        if len(self.settings) == 1:
            return
        left = ""
        if self.done:
            rest = sum(s.work for s in self.settings) - self.done
            left = f"; about {(time.monotonic() - self.began) / self.done * rest / 60:.0f} minutes left"
        self.count, self.done = self.count + 1, self.done + setting.work
        say(f"{self.count} of {len(self.settings)}: {setting}{left}", error=True)


def measure(options: Bench, setting: Setting, names: Sequence[str]) -> list[Row]:
    """A row for every model under one setting."""
    torch.set_num_threads(setting.threads)
    images = random_images(setting, options.device)
    subjects: dict[str, _Subject] = {}
    failures: dict[str, Exception] = {}
    for name in names:
        try:
            subjects[name] = _Subject(name, setting, images, options)
        except Exception as error:  # of any kind: the other models are still measured
            failures[name] = error
    if not subjects:
        raise next(iter(failures.values()))
    load = OtherLoad()
    steps = {name: subject.step for name, subject in subjects.items()}
    seconds = time_in_turn(steps, options.rounds, options.device, str(setting), _clock(options))
    others = load.cores()
    _warn_if_busy(others, setting.threads)
    rows = [subjects[name].row(seconds[name], others) for name in names if name in subjects]
    return rows + [Row(name, setting, failed=first_line(error)) for name, error in failures.items()]


def _clock(options: Bench) -> Callable[[], float]:
    return time.process_time if options.clock == "cpu" else time.perf_counter


def _warn_if_busy(others: float | None, threads: int) -> None:
    if others is not None and others > _BUSY:
        say(
            f"warning: other programs used {others:.1f} cores during this measurement; the best rounds with {threads} threads "
            "are slower than on a free machine, and only ratios say something",
            error=True,
        )


class _Subject:
    """A model under a setting: what is timed, and what is measured beside it."""

    def __init__(self, name: str, setting: Setting, images: torch.Tensor, options: Bench) -> None:
        self.name, self.setting = name, setting
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of timm's models about themselves
            model = create_model(name, setting.size_px, options.vheat_code).to(options.device)
            self.parameters, self.macs = count_parameters(model), _macs(name, setting.size_px, options.vheat_code)
            shapes = record_products(model.eval(), images) if options.products and setting.mode != "train" else None
            self.step, self.form = _started(model, images, setting)
        self.products: Products | None = None
        if shapes is not None:
            is_bf16 = "BF16" in self.form if setting.form == "optimized" else setting.dtype == "bf16"
            dtype = torch.bfloat16 if is_bf16 else torch.float32
            self.products = measure_products(shapes, dtype, options.device, clock=_clock(options))
        self.memory_gb = None
        if options.memory and setting.mode == "train":
            self.memory_gb = step_gb(name, setting, options.device, options.vheat_code)

    def row(self, seconds: Sequence[float], others: float | None) -> Row:
        return Row(
            self.name,
            self.setting,
            tuple(seconds),
            self.form,
            self.parameters,
            self.macs,
            self.memory_gb,
            self.products,
            other_cores=others,
        )


def _started(model: nn.Module, images: torch.Tensor, setting: Setting) -> tuple[Step, str]:
    """The step, once run: whatever fails, fails before the rounds."""
    step, form = create_step(model, images, setting)
    step()
    return step, form


@cache
def _macs(name: str, size_px: int, vheat_code: Path | None) -> int | None:
    """Multiply-adds for an image; None if the model cannot be counted without being run."""
    try:
        with torch.device("meta"):
            model = create_model(name, size_px, vheat_code).eval()
        return count_macs(model, size_px, size_px)
    except Exception:  # models that look at the values of tensors, of other people's code
        return None
