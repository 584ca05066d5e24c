"""Statistics of a study: mean and spread over seeds, and paired differences to the first variant."""

import io
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tailprop.studies.ablate.rows import Row
from tailprop.studies.ablate.study import Run
from tailprop.tasks.common.bench import write_rows
from tailprop.utils.files import write_atomically

__all__ = ["confidence_interval", "summarize", "t_quantile", "write_summary"]

# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom
_T: Final = (
    *(12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216, 2.22814),
    *(2.20099, 2.17881, 2.16037, 2.14479, 2.13145, 2.11991, 2.10982, 2.10092, 2.09302, 2.08596),
    *(2.07961, 2.07387, 2.06866, 2.06390, 2.05954, 2.05553, 2.05183, 2.04841, 2.04523, 2.04227),
)


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution; beyond the table an expansion around the normal one."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def confidence_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % confidence interval of the mean of normal values; None for fewer than two."""
    if len(values) < 2:
        return None
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def summarize(runs: Sequence[Run], done: dict[str, Row]) -> list[Row]:
    """A row for every recipe and variant with finished runs."""
    table = []
    for recipe in dict.fromkeys(run.recipe for run in runs):
        variants: dict[str, dict[int, Row]] = {}
        for run in runs:
            if run.recipe == recipe:
                rows = variants.setdefault(run.variant, {})
                if run.name in done:
                    rows[run.seed] = done[run.name]
        first = next(iter(variants.values()))
        table += [_summary(rows, {} if rows is first else first) for rows in variants.values() if rows]
    return table


def _summary(rows: dict[int, Row], first: dict[int, Row]) -> Row:
    any_row, values = next(iter(rows.values())), [float(row["value"]) for row in rows.values()]
    differences = [float(row["value"]) - float(first[seed]["value"]) for seed, row in rows.items() if seed in first]
    low, high = confidence_interval(differences) or (None, None)
    return {
        "recipe": any_row["recipe"],
        "variant": any_row["variant"],
        "metric": any_row["metric"],
        "seeds": str(len(values)),
        "mean": _text(statistics.fmean(values)),
        "std": _text(statistics.stdev(values) if len(values) > 1 else None),
        "difference": _text(statistics.fmean(differences) if differences else None),
        "ci_low": _text(low),
        "ci_high": _text(high),
        "pairs": str(len(differences)) if first else "",
        "parameters": any_row["parameters"],
        "macs": any_row["macs"],
        "img_per_s": f"{statistics.median(float(row['img_per_s']) for row in rows.values()):.4g}",
    }


def _text(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"


def write_summary(out: Path, runs: Sequence[Run], done: dict[str, Row]) -> None:
    """Write summary.csv and summary.md; nothing before the first run has finished."""
    if not (table := summarize(runs, done)):
        return
    write_rows(out / "summary.csv", table)
    text = io.StringIO()
    if len({row["recipe"] for row in table}) > 1:
        note = "Mean and standard deviation over seeds; a number of seeds in parentheses, where some are missing."
        text.write(f"## All recipes\n\n{_overview(table)}\n\n{note}\n\n")
    for recipe in dict.fromkeys(row["recipe"] for row in table):
        rows = [row for row in table if row["recipe"] == recipe]
        planned = len({run.seed for run in runs})
        text.write(f"## {recipe}\n\n{_markdown(rows)}\n\n{_notes(rows, done, planned)}\n\n")
    write_atomically(out / "summary.md", lambda part: part.write_text(text.getvalue().rstrip() + "\n"))


def _overview(table: Sequence[Row]) -> str:
    """A row for each variant, a column for each recipe."""
    recipes = list(dict.fromkeys(row["recipe"] for row in table))
    cells = {(row["variant"], row["recipe"]): _cell(row, most=max(int(other["seeds"]) for other in table)) for row in table}
    lines = [("variant", *recipes), ("---",) * (1 + len(recipes))]
    for variant in dict.fromkeys(row["variant"] for row in table):
        lines.append((variant, *(cells.get((variant, recipe), "") for recipe in recipes)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(row: Row, most: int) -> str:
    seeds = "" if int(row["seeds"]) == most else f" ({row['seeds']})"
    spread = f" ± {float(row['std']):.2f}" if row["std"] else ""
    return f"{float(row['mean']):.2f}{spread}{seeds}"


def _markdown(rows: Sequence[Row]) -> str:
    metric, first = rows[0]["metric"], rows[0]["variant"]
    header = ("variant", metric, "std", f"difference to {first}", "95 % interval", "parameters", "MACs", "img/s", "seeds")
    lines = [header, ("---",) * len(header)]
    for row in rows:
        interval = f"{float(row['ci_low']):+.3f} to {float(row['ci_high']):+.3f}" if row["ci_low"] else ""
        mean, std, difference = (
            _rounded(row[name], style) for name, style in (("mean", ".3f"), ("std", ".3f"), ("difference", "+.3f"))
        )
        cost = (f"{int(row['parameters']) / 1e6:.2f} M", f"{int(row['macs']) / 1e9:.3f} G", row["img_per_s"])
        lines.append((row["variant"], mean, std, difference, interval, *cost, row["seeds"]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rounded(number: str, style: str) -> str:
    return format(float(number), style) if number else ""


def _notes(rows: Sequence[Row], done: dict[str, Row], planned: int) -> str:
    used = [row for row in done.values() if row["recipe"] == rows[0]["recipe"]]
    parts = [f"{name} {_listed(row[name] for row in used)}" for name in ("hardware", "threads", "torch", "timm", "commit")]
    return (
        f"{rows[0]['metric']} after the last epoch, mean and standard deviation over up to {planned} seeds. Differences are "
        f"paired by seed; intervals are Student's. Measured with {', '.join(parts)}."
    )


def _listed(values: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(values))
