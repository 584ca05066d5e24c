"""The loop, and the commands built on it, in miniature."""

import csv
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn

import tailprop_cli
from tailprop.data.memory import load_digits
from tailprop.train import Schedule, build_optimizer, fit
from tests.test_backbone import tiny_net


def test_schedule() -> None:
    schedule = Schedule(lr=1.0, steps=110, warmup_steps=10, min_lr=0.1)
    assert schedule.at(0) == pytest.approx(0.1)
    assert schedule.at(9) == schedule.at(10) == pytest.approx(1.0)
    assert schedule.at(60) == pytest.approx(0.55)
    assert schedule.at(110) == schedule.at(500) == pytest.approx(0.1)


def test_optimizer_spares_scales() -> None:
    model = tiny_net(mixer_args=dict(scale_per_channel=True))
    optimizer = build_optimizer(model, weight_decay=0.05, scale_lr=10.0)
    settings = {id(p): (g["weight_decay"], g["lr_scale"]) for g in optimizer.param_groups for p in g["params"]}
    assert len(settings) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        expected = (0.0, 10.0) if name.endswith("theta") else (0.05 if parameter.ndim > 1 else 0.0, 1.0)
        assert settings[id(parameter)] == expected, name


def test_non_finite_loss_stops_with_its_place() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match="the loss became nan at epoch 0, step 1"):
        fit(
            model,
            optimizer,
            Schedule(lr=1e-3, steps=2),
            lambda _epoch: [1.0, float("nan")],
            lambda net, batch: net(torch.ones(1, 1)).sum() * batch,
            lambda _net: {},
            epochs=1,
        )


def test_digits_are_split_by_class_and_shuffled_by_seed() -> None:
    train, test = load_digits()
    assert (len(train), len(test)) == (1198, 599)
    assert test.labels.bincount().min() >= 57
    first, again = (next(train.batches(8, torch.Generator().manual_seed(1), flip=True, shift_px=2)) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert first[0].min() >= -1
    assert first[0].max() <= 1


def test_demo_in_one_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tailprop_cli.main(["demo", "--epochs", "1", "--batch", "512", "--out", str(tmp_path)]) == 0
    assert "of the held-out digits are right" in capsys.readouterr().out
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"learning.png", "operator.png", "history.csv", "model.safetensors"}


def write_snapshot(root: Path) -> None:
    for split, count in (("train", 8), ("validation", 4)):
        rows = []
        for i in range(count):
            buffer = io.BytesIO()
            Image.fromarray(np.full((40, 40, 3), 30 * i, dtype=np.uint8)).save(buffer, "PNG")
            rows.append({"image": {"bytes": buffer.getvalue(), "path": None}, "label": i % 2})
        pq.write_table(pa.Table.from_pylist(rows), root / f"{split}-00000-of-00001.parquet")


def test_scale_study_writes_rows_with_their_origin(tmp_path: Path) -> None:
    write_snapshot(tmp_path)
    out = tmp_path / "scales.csv"
    args = ["--data", str(tmp_path), "--out", str(out), "--size-px", "32", "--epochs", "1", "--batch", "4"]
    assert tailprop_cli.main(["scales", *args, "--only", "no propagation", "0.2"]) == 0
    control, row = csv.DictReader(out.read_text().splitlines())
    assert control["trial"] == "no propagation"
    assert control["scales"] == ""
    assert len(row["scales"].split()) == 10
    assert row["torch"] == torch.__version__
