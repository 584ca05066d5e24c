"""Statistics of a study, compared with scipy."""

import math
from pathlib import Path
from typing import Any

import pytest
import scipy.stats

from tailprop.studies.ablate.rows import COLUMNS, Row
from tailprop.studies.ablate.study import plan_runs, read_study
from tailprop.studies.ablate.summary import confidence_interval, summarize, t_quantile, write_summary
from tests.helpers.runs import write_recipe
from tests.studies.ablate.test_study import write_study


@pytest.mark.parametrize("freedom", [1, 2, 5, 30, 31, 60, 500])
def test_quantiles(freedom: int) -> None:
    assert t_quantile(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=1e-4)


def test_confidence_interval() -> None:
    values = [0.3, -0.2, 1.1, 0.7]
    expected = scipy.stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=scipy.stats.sem(values))
    assert confidence_interval(values) == pytest.approx(expected, rel=1e-4)
    assert confidence_interval([1.0]) is None


def rows(tmp_path: Path, values: dict[tuple[str, int], float], **study: Any) -> tuple[list, dict[str, Row]]:
    runs = plan_runs(read_study(write_study(tmp_path, seeds=[0, 1, 2], **study)), tmp_path / "out")
    filled = dict.fromkeys(COLUMNS, "1") | {"recipe": "small", "metric": "top1"}
    done = {
        run.name: filled
        | {"recipe": run.recipe, "variant": run.variant, "seed": str(run.seed), "value": str(values[run.variant, run.seed])}
        for run in runs
        if (run.variant, run.seed) in values
    }
    return runs, done


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    values = {("paper", 0): 10.0, ("paper", 1): 20.0, ("paper", 2): 33.0, ("none", 0): 11.0, ("none", 2): 35.0}
    runs, done = rows(tmp_path, values)
    first, second = summarize(runs, done)
    assert (first["variant"], first["seeds"], float(first["mean"])) == ("paper", "3", 21.0)
    assert float(first["std"]) == pytest.approx(math.sqrt((11**2 + 1 + 12**2) / 2), rel=1e-5)
    assert first["difference"] == first["ci_low"] == ""
    assert (second["seeds"], second["pairs"], float(second["difference"])) == ("2", "2", 1.5)  # not of the means, 23 - 21
    low, high = scipy.stats.t.interval(0.95, 1, loc=1.5, scale=0.5)
    assert (float(second["ci_low"]), float(second["ci_high"])) == pytest.approx((low, high), rel=1e-4)


def test_table_in_markdown(tmp_path: Path) -> None:
    runs, done = rows(tmp_path, {("paper", 0): 10.0, ("none", 0): 12.5})
    write_summary(tmp_path, runs, done)
    lines = (tmp_path / "summary.md").read_text().splitlines()
    assert lines[0] == "## small"
    assert lines[2].startswith("| variant | top1 | std | difference to paper |")
    assert lines[5].startswith("| none | 12.500 |  | +2.500 |")
    assert "up to 3 seeds" in lines[-1]


def test_overview_of_several_recipes(tmp_path: Path) -> None:
    values = {("paper", 0): 10.0, ("paper", 1): 12.0, ("none", 0): 12.5}
    runs, done = rows(tmp_path, values, recipes=[str(write_recipe(tmp_path / "small.yaml")), "digits"])
    del done["digits paper seed0"]
    write_summary(tmp_path, runs, done)
    lines = (tmp_path / "summary.md").read_text().splitlines()
    assert lines[0] == "## All recipes"
    assert lines[2:6] == [
        "| variant | small | digits |",
        "| --- | --- | --- |",
        "| paper | 11.00 ± 1.41 | 12.00 (1) |",
        "| none | 12.50 (1) | 12.50 (1) |",
    ]
