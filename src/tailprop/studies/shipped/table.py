"""`tailprop shipped`: PSNR and time of the shipped restorers, beside BM3D and the published numbers of DnCNN.

Noise is that of SwinIR's test, JPEG comes from Pillow's encoder, results are rounded to 8 bits, and images are restored whole.
For noise the PSNR is that of all channels, for JPEG that of the luma. Seconds are CPU time of one thread.
"""

import csv
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.images import list_images
from tailprop.data.samplers import SampleKey
from tailprop.engine.run_settings import find_weights
from tailprop.engine.shipped import shipped_names
from tailprop.runtime.provenance import provenance
from tailprop.studies.shipped.figure import draw_table
from tailprop.studies.shipped.options import ShippedTable
from tailprop.studies.shipped.photographs import held_out_photographs, scikit_image_photographs
from tailprop.studies.shipped.published import PUBLISHED
from tailprop.tasks.common.bench import write_rows
from tailprop.tasks.common.look import save_figure
from tailprop.tasks.restore.config import RestoreDataConfig
from tailprop.tasks.restore.data import Pair, WholeImageDataset
from tailprop.tasks.restore.inference import in_colour
from tailprop.tasks.restore.load import load_restorer
from tailprop.tasks.restore.metrics import Protocol, psnr, ssim, to_bytes
from tailprop.utils.parsing import read_bytes
from tailprop.utils.terminal import Console, Table

__all__ = ["Case", "measure", "run"]

MODELS: Final = {"noise": "denoise", "jpeg": "unjpeg"}
Restore = Callable[[Tensor], Tensor]  # (C, H, W) -> (C, H, W)
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A test set with one degradation."""

    test_set: str
    paths: Sequence[Path]
    degradation: Literal["noise", "jpeg"]
    level: int  # sigma or quality

    def pairs(self) -> Iterator[Pair]:
        data = RestoreDataConfig(degradation=self.degradation, sigma=self.level, quality=self.level)
        images = WholeImageDataset(self.paths, data, 3)
        for index in range(len(images)):
            pair = images.read_example(index, SampleKey(index, 0))
            if isinstance(pair, Broken):
                raise ValueError(str(pair))
            yield pair

    @property
    def protocol(self) -> Protocol:
        return Protocol(on_luma=self.degradation == "jpeg")


def run(options: ShippedTable) -> None:
    options.check()
    torch.set_num_threads(1)
    rows, console = _read(options.out), Console()
    for case in _cases(options):
        for method in options.methods:
            if (restorer := _restorer(method, case)) is None or _position(rows, case, *restorer[:2]) is not None:
                continue
            name, version, restore = restorer
            row = measure(case, restore) | {"method": name, "version": version, **provenance()}
            rows = [old for old in rows if _key(old)[:4] != _key(row)[:4]] + [row]
            write_rows(options.out, sorted(rows, key=_order))
            console.print(f"{case.test_set}, {case.degradation} {case.level}, {name}: {row['psnr']} dB")
    if not rows:
        raise ValueError("nothing to measure; choose --methods and a test set")
    rows.sort(key=_order)
    save_figure(draw_table(rows), options.out.with_suffix(".png"))
    _print(rows, console)


def measure(case: Case, restore: Restore) -> Row:
    """Mean scores of a test set, and the CPU time of a megapixel."""
    scores, seconds, pixels = [], 0.0, 0
    for pair in case.pairs():
        began = time.process_time()
        restored = restore(pair.degraded)
        seconds, pixels = seconds + time.process_time() - began, pixels + pair.clean[0].numel()
        degraded, result, clean = (case.protocol.part(to_bytes(x)) for x in (pair.degraded, restored, pair.clean))
        before = _exact(pair) if case.degradation == "noise" else psnr(degraded, clean)
        scores.append((before, psnr(result, clean), ssim(result, clean)))
    before, after, similarity = np.mean(scores, axis=0)
    return dict(
        test_set=case.test_set,
        degradation=case.degradation,
        level=case.level,
        images=len(scores),
        input_psnr=f"{before:.3f}",
        psnr=f"{after:.3f}",
        ssim=f"{similarity:.4f}",
        seconds_per_megapixel=f"{seconds / pixels * 1e6:.3g}",
    )


def _exact(pair: Pair) -> float:
    """PSNR of the noisy image, neither rounded nor clipped."""
    return -10 * float(np.log10(float((pair.degraded.double() - pair.clean.double()).square().mean())))


def _cases(options: ShippedTable) -> Iterator[Case]:
    sets = {} if options.set12 is None else {"Set12": list_images([str(options.set12)])}
    if options.colour is not None:
        sets["BSD, 20 in colour"] = held_out_photographs(options.colour)
    if options.scikit_image:
        sets["scikit-image, 5 photographs"] = scikit_image_photographs()
    for name, paths in sets.items():
        yield from (Case(name, paths, "noise", sigma) for sigma in options.sigmas)
        yield from (Case(name, paths, "jpeg", quality) for quality in options.qualities)


def _restorer(method: str, case: Case) -> tuple[str, str, Restore] | None:
    """Name, version and function of a method; None if it does not restore this degradation."""
    if method == "bm3d":
        return _bm3d(case.level) if case.degradation == "noise" else None
    if (name := MODELS[case.degradation]) not in shipped_names():
        return None
    digest = hashlib.sha256(read_bytes(find_weights(name))).hexdigest()[:12]
    restorer = load_restorer(name)

    def restore(degraded: Tensor) -> Tensor:
        return in_colour(restorer.restore, degraded[None], restorer.in_chans)[0]

    restore(torch.zeros(1, 64, 64))  # the first call of a network takes longer
    return name, digest, restore


def _bm3d(sigma: int) -> tuple[str, str, Restore]:
    """BM3D, which is told the noise level, with its default profile."""
    from importlib.metadata import version

    try:
        import bm3d
    except ModuleNotFoundError:
        raise ValueError("bm3d is not installed; pip install bm3d, or leave it out of --methods") from None

    def restore(degraded: Tensor) -> Tensor:
        values = degraded.double().numpy()
        if len(values) == 1:
            return torch.from_numpy(bm3d.bm3d(values[0], sigma / 255))[None]
        return torch.from_numpy(bm3d.bm3d_rgb(np.moveaxis(values, 0, -1), sigma / 255)).movedim(-1, 0)

    return "BM3D", version("bm3d"), restore


def _read(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["method"] in ("BM3D", *MODELS.values())]


def _key(row: Row) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in ("test_set", "degradation", "level", "method", "version"))


def _position(rows: Sequence[Row], case: Case, method: str, version: str) -> int | None:
    key = (case.test_set, case.degradation, str(case.level), method, version)
    return next((i for i, row in enumerate(rows) if _key(row) == key), None)


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["degradation"] != "noise", row["test_set"] != "Set12", row["test_set"], int(row["level"]), row["method"]


def _print(rows: Sequence[Row], console: Console) -> None:
    table = Table("test set", "degradation", "method", "input, dB", "PSNR, dB", "SSIM", "s / megapixel")
    for row in rows:
        level = f"{row['degradation']} {row['level']}"
        cells = (row[name] for name in ("input_psnr", "psnr", "ssim", "seconds_per_megapixel"))
        table.add_row(row["test_set"], level, row["method"], *cells)
    for published in PUBLISHED:
        level = f"{published.degradation} {published.level}"
        table.add_row(published.test_set, level, f"{published.method} (its paper)", "", f"{published.psnr:.2f}", "", "")
    (console if console.is_terminal else Console(width=140)).print(table)
