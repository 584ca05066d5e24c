"""Schedules, optimizers, and small runs of the demo and the studies."""

import csv
import io
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import tailprop_cli
from tailprop.engine.config import OptimConfig
from tailprop.engine.optim import Schedule, build_optimizer, build_schedule
from tailprop.engine.trainer import Trainer
from tests.backbone.test_model import tiny_net


def test_schedule() -> None:
    schedule = Schedule(lr=1.0, steps=110, warmup_steps=10, min_lr=0.1)
    assert schedule.at(0) == pytest.approx(0.1)
    assert schedule.at(9) == schedule.at(10) == pytest.approx(1.0)
    assert schedule.at(60) == pytest.approx(0.55)
    assert schedule.at(110) == schedule.at(500) == pytest.approx(0.1)


def test_linear_and_step_schedules() -> None:
    line = Schedule(lr=1.0, steps=110, warmup_steps=10, sched="poly")
    assert [line.at(step) for step in (4, 10, 60, 110)] == pytest.approx([0.5, 1.0, 0.5, 0.0])
    optim = OptimConfig(epochs=12, lr=1e-4, lr_base_size=None, warmup_steps=100, sched="steps", milestones=(8, 11))
    drops = build_schedule(optim, steps_per_epoch=50, processes=2)
    assert [drops.at(step) for step in (49, 99, 399, 400, 549, 550)] == pytest.approx([5e-5, 1e-4, 1e-4, 1e-5, 1e-5, 1e-6])


@pytest.mark.parametrize("wrong", [dict(sched="steps"), dict(milestones=(3.0,)), dict(sched="steps", milestones=(4.0, 2.0))])
def test_milestones_need_the_step_schedule(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="milestones"):
        OptimConfig(**wrong).check()


def test_no_weight_decay_on_scales() -> None:
    model = tiny_net(mixer_args=dict(scale_per_channel=True))
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.05, scale_lr=10.0))
    settings = {id(p): (g["weight_decay"], g["lr_scale"]) for g in optimizer.param_groups for p in g["params"]}
    assert len(settings) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        expected = (0.0, 10.0) if name.endswith("theta") else (0.05 if parameter.ndim > 1 else 0.0, 1.0)
        assert settings[id(parameter)] == expected, name


def test_demo_in_one_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tailprop_cli.main(["demo", "--epochs", "1", "--batch-size", "512", "--out", str(tmp_path)]) == 0
    assert "on the held-out digits after epoch" in capsys.readouterr().out
    names = {path.name for path in tmp_path.iterdir()}
    assert {"learning.png", "confusion.png", "operator.png", "model.safetensors", "manifest.json"} <= names


def test_stopped_demo_prints_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    after_step = Trainer._after_step

    def press_ctrl_c(self: Trainer) -> None:
        self.stop_signal = signal.SIGINT
        after_step(self)

    monkeypatch.setattr(Trainer, "_after_step", press_ctrl_c)
    assert tailprop_cli.main(["demo", "--batch-size", "512", "--out", str(tmp_path)]) == 130
    error = capsys.readouterr().err
    assert error.endswith("tailprop: stopped after step 1\n")  # the demo has no --run.resume
    assert "Traceback" not in error


def write_snapshot(root: Path) -> None:
    for split, count in (("train", 8), ("validation", 4)):
        rows = []
        for i in range(count):
            buffer = io.BytesIO()
            Image.fromarray(np.full((40, 40, 3), 30 * i, dtype=np.uint8)).save(buffer, "PNG")
            rows.append({"image": {"bytes": buffer.getvalue(), "path": None}, "label": i % 2})
        pq.write_table(pa.Table.from_pylist(rows), root / f"{split}-00000-of-00001.parquet")


def test_scale_study_writes_rows_with_provenance(tmp_path: Path) -> None:
    write_snapshot(tmp_path)
    out = tmp_path / "scales.csv"
    args = [
        "--data",
        str(tmp_path),
        "--out",
        str(out),
        "--size-px",
        "32",
        "--epochs",
        "1",
        "--batch-size",
        "4",
        "--workers",
        "0",
    ]
    assert tailprop_cli.main(["scales", *args, "--only", "no propagation", "0.2"]) == 0
    control, row = csv.DictReader(out.read_text().splitlines())
    assert control["trial"] == "no propagation"
    assert control["scales"] == ""
    assert len(row["scales"].split()) == 10
    assert row["torch"] == torch.__version__


def test_loader_study_measures_three_kinds_of_batches(tmp_path: Path) -> None:
    write_snapshot(tmp_path)
    out = tmp_path / "loader.csv"
    args = ["--data", str(tmp_path), "--model", "tailprop_pico", "--size-px", "32", "--batch-size", "4", "--threads", "1"]
    assert tailprop_cli.main(["loader", *args, "--steps", "1", "--rounds", "1", "--workers", "0", "--out", str(out)]) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["batches"] for row in rows] == ["in memory", "from JPEG files", "from JPEG files, decoded once"]
    assert all(float(row["img_per_s_median"]) > 0 for row in rows)
