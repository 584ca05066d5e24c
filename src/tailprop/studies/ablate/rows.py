"""rows.csv of a study: a row for every finished run. A run with a row is done, even if its folder is gone."""

import csv
import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tailprop.engine.run_folder import RunFolder
from tailprop.studies.ablate.study import Run
from tailprop.tasks.common.bench import write_rows
from tailprop.utils.parsing import read_text

__all__ = ["COLUMNS", "Row", "done_rows", "epochs_of", "read_rows", "row_of", "save_rows"]

Row = dict[str, str]
_PROVENANCE: Final = ("threads", "hardware", "python", "torch", "timm", "commit")
_RESULTS: Final = ("metric", "value", "best", "epochs", "parameters", "macs", "img_per_s", "seconds")
COLUMNS: Final = ("recipe", "variant", "seed", "config_hash", *_RESULTS, *_PROVENANCE)


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    try:
        names, *rows = list(csv.reader(io.StringIO(read_text(path), newline=""), strict=True)) or [[]]
    except csv.Error as error:
        raise ValueError(f"{path} is corrupt ({error}); move it away, or choose another --out") from None
    if tuple(names) != COLUMNS or any(len(row) != len(COLUMNS) for row in rows):
        raise ValueError(f"{path} is not a table of tailprop ablate; move it away, or choose another --out")
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def save_rows(path: Path, rows: Sequence[Row], runs: Sequence[Run]) -> None:
    """Write the rows in the order of the study, whatever order the runs finished in; rows of earlier settings come first."""
    places = {key_of(run): place for place, run in enumerate(runs)}
    ordered: list[Row] = sorted(rows, key=lambda row: places.get(key_of_row(row), -1))
    write_rows(path, ordered)


def key_of(run: Run) -> tuple[str, ...]:
    return run.recipe, run.variant, str(run.seed), run.hash


def key_of_row(row: Row) -> tuple[str, ...]:
    return row["recipe"], row["variant"], row["seed"], row["config_hash"]


def done_rows(rows: Sequence[Row], runs: Sequence[Run]) -> dict[str, Row]:
    """The rows of these runs with these settings, by the name of the run."""
    known = {key_of_row(row): row for row in rows}
    return {run.name: known[key_of(run)] for run in runs if key_of(run) in known}


def epochs_of(folder: Path) -> list[dict[str, Any]]:
    """The logged epochs of a run; none if its folder is gone."""
    return [row for row in RunFolder(folder).read_log() if row["kind"] == "epoch"]


def row_of(run: Run) -> Row:
    """The row of a finished run, from its folder."""
    epochs, manifest = epochs_of(run.folder), RunFolder(run.folder).read_manifest()
    measured = [row[run.metric] for row in epochs if run.metric in row]
    if not measured or epochs[-1]["epoch"] != run.config.optim.epochs:
        raise ValueError(f"{run.folder} is not a finished run")
    last = epochs[-1]
    found: dict[str, object] = {
        "recipe": run.recipe,
        "variant": run.variant,
        "seed": run.seed,
        "config_hash": run.hash,
        "metric": run.metric,
        "value": f"{last[run.metric]:.6g}",
        "best": f"{max(measured):.6g}",
        "epochs": last["epoch"],
        "parameters": manifest.get("parameters", ""),
        "macs": manifest.get("macs", ""),
        "img_per_s": f"{statistics.median(row['img_per_s'] for row in epochs):.4g}",
        "seconds": f"{60 * last['minutes']:.1f}",
        **{name: manifest.get(name, "") for name in _PROVENANCE},
    }
    return {name: str(found[name]) for name in COLUMNS}
