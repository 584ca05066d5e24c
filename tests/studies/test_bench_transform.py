"""The benchmark of the transform: its fit, its table and its figure."""

import csv
from pathlib import Path

import pytest

from tailprop.backbone.dct_route import Costs, best_split
from tailprop.backbone.dct_split import multiply_adds
from tailprop.studies.bench.transform import Timing, fit_costs
from tailprop_cli import main


def test_the_fit_finds_the_costs() -> None:
    """Times that follow the model exactly: 0.1 ns a multiply-add, 5 ns beside."""
    timings = []
    for n in (12, 56, 97, 224, 331):
        products = {"product": n, "split": multiply_adds(n, best_split(n)) + 20, "FFT": 300}
        timings += [Timing("infer", str(n), way, 0.1 * count + 5, 0.0) for way, count in products.items()]
    timings.append(Timing("infer", "56x56", "rule", 3.0, 3.0))
    fold, fft = fit_costs(timings, "infer")
    assert Costs(round(fold, 3), round(fft, 3)) == Costs(20, 300)


def test_bench_transform_writes_table_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "transform.csv"
    sizes = ["--lengths", "8", "11", "--maps", "9x12", "--channels", "2", "--positions", "44"]
    assert main(["bench", "transform", *sizes, "--rounds", "1", "--threads", "1", "--out", str(out)]) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert {(row["mode"], row["size"], row["way"]) for row in rows} >= {("infer", "8", "split"), ("train", "9x12", "rule")}
    assert all(float(row["ns"]) > 0 and row["threads"] == "1" for row in rows)
    assert out.with_suffix(".png").stat().st_size > 10_000
    assert "fitted costs, train" in capsys.readouterr().out


@pytest.mark.parametrize("size", ["9", "9x", "1x9", "axb"])
def test_a_bad_size_is_named(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "transform", "--maps", size]) == 2
    assert "HEIGHTxWIDTH" in capsys.readouterr().err
