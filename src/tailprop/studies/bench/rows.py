"""The rows of the benchmark of backbones: numbers, table, CSV."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailprop.studies.bench.products import Products
from tailprop.studies.bench.settings import Setting
from tailprop.tasks.common.bench import print_table
from tailprop.utils.parsing import read_text
from tailprop.utils.terminal import Table

__all__ = ["Cells", "Row", "is_done", "print_rows", "read_rows", "to_cells"]

Cells = dict[str, str]  # a row of the CSV file
_KEY = ("mode", "form", "dtype", "batch_size", "size_px", "threads")


@dataclass(frozen=True)
class Row:
    """What was measured of a model under a setting."""

    model: str
    setting: Setting
    seconds: tuple[float, ...] = ()  # of each round; empty = it failed
    chosen: str = ""  # the form that was measured; of an optimized model, what was chosen
    parameters: int | None = None
    macs: int | None = None  # of one image
    memory_gb: float | None = None  # peak of a training step
    products: Products | None = None
    failed: str = ""
    other_cores: float | None = None  # used by other programs meanwhile

    @property
    def best(self) -> float:
        """Images per second in the best round."""
        return self.setting.batch_size / min(self.seconds)

    @property
    def median(self) -> float:
        return self.setting.batch_size / statistics.median(self.seconds)

    @property
    def products_share(self) -> float | None:
        """Time of the matrix products alone over that of the best round."""
        return None if self.products is None else self.products.seconds / min(self.seconds)

    @property
    def products_rate(self) -> float | None:
        """Multiply-adds per second of the matrix products alone."""
        return None if self.products is None else self.products.macs / self.products.seconds


def print_rows(rows: Sequence[Row], setting: Setting, where: Mapping[str, str]) -> None:
    table = Table("model", "img/s", "median", "ms", "first / this", "GMACs", "M par.", "", title=str(setting))
    table.columns[0].no_wrap = True
    for row in rows:
        if row.failed:
            table.add_row(row.model, "failed", *[""] * 5, row.failed)
            continue
        table.add_row(
            row.model,
            f"{row.best:.2f}",
            f"{row.median:.2f}",
            f"{1e3 * min(row.seconds):.1f}",
            f"{_ratio(rows, row):.2f}",
            _text(row.macs and row.macs / 1e9, ".2f"),
            _text(row.parameters and row.parameters / 1e6, ".1f"),
            _more(row),
        )
    others = rows[0].other_cores
    load = {} if others is None else {"cores used by other programs": f"{others:.1f}"}
    print_table(table, {**where, **load})


def _more(row: Row) -> str:
    parts = [row.chosen] if row.setting.form == "optimized" else []
    if row.memory_gb is not None:
        parts.append(f"{row.memory_gb:.2f} GB")
    if row.products_share is not None and row.products_rate is not None:
        parts.append(f"its products alone {row.products_share:.0%}, {row.products_rate / 1e9:.0f} GMAC/s")
    return ", ".join(parts)


def to_cells(rows: Sequence[Row], where: Mapping[str, str]) -> list[Cells]:
    """Rows of the CSV file, with provenance."""
    return [{**_numbers(rows, row), **where} for row in rows]


def _numbers(rows: Sequence[Row], row: Row) -> Cells:
    done = not row.failed
    return {
        "mode": row.setting.mode,
        "model": row.model,
        "img_per_s_best": _text(row.best if done else None, ".2f"),
        "img_per_s_median": _text(row.median if done else None, ".2f"),
        "first_over_this": _text(_ratio(rows, row) if done else None, ".3f"),
        "ms_best": _text(1e3 * min(row.seconds) if done else None, ".1f"),
        "parameters": _text(row.parameters, "d"),
        "macs": _text(row.macs, "d"),
        "memory_gb": _text(row.memory_gb, ".2f"),
        "products_share": _text(row.products_share, ".3f"),
        "products_gmac_per_s": _text(row.products_rate and row.products_rate / 1e9, ".1f"),
        "chosen": row.chosen,
        "failed": row.failed,
        "rounds": str(len(row.seconds)),
        "other_cores": _text(row.other_cores, ".2f"),
    }


def _ratio(rows: Sequence[Row], row: Row) -> float:
    """How many times as fast as this model the first one is."""
    first = next(r for r in rows if not r.failed)
    return first.best / row.best


def _text(number: float | None, style: str) -> str:
    return "" if number is None else format(number, style)


def read_rows(path: Path) -> list[Cells]:
    """The rows of an earlier run; none if there is no file."""
    if not path.is_file():
        return []
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True))
    except csv.Error as error:
        raise ValueError(f"{path} is corrupt ({error}); choose another --out, or omit --resume") from None
    if any(name not in row for row in rows for name in (*_KEY, "model", "failed")):
        raise ValueError(f"{path} is not a file of this benchmark; choose another --out, or omit --resume")
    return rows


def is_done(cells: Sequence[Cells], setting: Setting, names: Sequence[str]) -> bool:
    """Whether all models have a row under a setting."""
    key = {"mode": setting.mode, **setting.columns()}
    done = {row["model"] for row in cells if all(row[name] == key[name] for name in _KEY)}
    return set(names) <= done
