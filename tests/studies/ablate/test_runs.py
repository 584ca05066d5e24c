"""Whole studies: their tables, and the same tables after kills at random moments."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import tailprop_cli
from tests.helpers.runs import assert_refused, write_recipe

MEASURED = ("img_per_s", "seconds")  # the columns that depend on the machine


def write_study(folder: Path) -> Path:
    small = {"depths": [1], "dims": [8]}
    recipe = write_recipe(folder / "small.yaml", model={"args": small}, optim={"epochs": 2, "epoch_steps": 3, "batch_size": 16})
    variants = {"paper": {"model.args.mixer": "tailprop"}, "none": {"model.args.mixer": "identity"}}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({"recipes": [str(recipe)], "variants": variants, "seeds": [0, 1]}, sort_keys=False))
    return path


def command(study: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "tailprop_cli", "ablate", str(study), "--out", str(out), "--jobs", "2"]


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return [{name: value for name, value in row.items() if name not in MEASURED} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A study, and the folder in which it ran without a break."""
    folder = tmp_path_factory.mktemp("whole")
    study = write_study(folder)
    subprocess.run(command(study, folder / "out"), check=True, timeout=300, capture_output=True)
    return study, folder / "out"


def test_table_of_a_study(whole: tuple[Path, Path]) -> None:
    rows = table(whole[1] / "rows.csv")
    assert [(row["variant"], row["seed"]) for row in rows] == [("paper", "0"), ("paper", "1"), ("none", "0"), ("none", "1")]
    summary = table(whole[1] / "summary.csv")
    assert [row["variant"] for row in summary] == ["paper", "none"]
    for row in summary:
        values = [float(r["value"]) for r in rows if r["variant"] == row["variant"]]
        assert float(row["mean"]) == pytest.approx(sum(values) / 2, rel=1e-5)
        assert int(row["macs"]) > 0
    for name in ("curves.png", "learned.png", "summary.md"):
        assert (whole[1] / name).stat().st_size > 100


def test_a_finished_study_trains_nothing_even_without_its_run_folders(
    whole: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, out = whole
    (tmp_path / "rows.csv").write_bytes((out / "rows.csv").read_bytes())
    assert tailprop_cli.main(["ablate", str(study), "--out", str(tmp_path)]) == 0
    assert "4 runs, 4 done, 0 to do" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert table(tmp_path / "summary.csv") == table(out / "summary.csv")


def test_killed_stopped_and_started_twice(whole: tuple[Path, Path], tmp_path: Path) -> None:
    """A study that was killed at a random moment, and then stopped by a signal, ends with the same tables."""
    study, out = whole
    process = subprocess.Popen(command(study, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_a_run(process, tmp_path)
    time.sleep(random.Random(1).uniform(0, 3))
    process.kill()  # its children notice that it is gone
    process.communicate()

    process = subprocess.Popen(command(study, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "4 runs" in process.stdout.readline()  # the folder is locked
    second = subprocess.run(command(study, tmp_path), capture_output=True, text=True, timeout=100, check=False)
    assert second.returncode == 2
    assert "another tailprop ablate is running" in second.stderr
    os.kill(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=100)
    if process.returncode == -signal.SIGTERM:  # the study was finished, and Python about to end
        assert (tmp_path / "summary.csv").is_file()
    elif process.returncode:
        assert process.returncode == 143
        assert "the same command resumes" in said

    subprocess.run(command(study, tmp_path), check=True, timeout=300, capture_output=True)
    assert table(tmp_path / "rows.csv") == table(out / "rows.csv")
    assert table(tmp_path / "summary.csv") == table(out / "summary.csv")


def wait_for_a_run(process: subprocess.Popen[str], out: Path) -> None:
    while process.poll() is None and not any((out / "runs").rglob("metrics.jsonl")):
        time.sleep(0.02)


def test_a_failed_run_is_named_and_the_others_are_finished(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    values = yaml.safe_load(study.read_text())
    values["variants"]["none"] = {"model.args.depths": [1, 1, 1, 1]}  # dims has one entry
    study.write_text(yaml.safe_dump(values | {"seeds": [0]}, sort_keys=False))
    done = subprocess.run(command(study, tmp_path / "out"), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert "small none seed0 failed" in done.stderr
    assert "depths and dims" in done.stderr
    assert [row["variant"] for row in table(tmp_path / "out" / "rows.csv")] == ["paper"]


def test_changed_settings_and_foreign_tables_are_refused(
    whole: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, _ = whole
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    assert_refused(["ablate", str(study), "--out", str(tmp_path)], "is not a table of tailprop ablate", capsys)
