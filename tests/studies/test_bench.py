"""The benchmark of backbones: settings, rows, products, failures, resuming, figure."""

import csv
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import tailprop_cli
from tailprop.engine.options import parse_options
from tailprop.runtime import load
from tailprop.studies.bench import models, steps
from tailprop.studies.bench.options import CPU_PEERS, Bench
from tailprop.studies.bench.products import measure_products, record_products
from tailprop.studies.bench.settings import settings_of

SMALL = [
    "--models",
    "tailprop_pico",
    "mobilenetv4_conv_small_035",
    "--size-px",
    "32",
    "--batch-size",
    "1",
    "--rounds",
    "1",
    "--threads",
    "1",
]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_settings_are_all_combinations_that_exist() -> None:
    args = [
        "--batch-size",
        "1",
        "8",
        "--dtype",
        "fp32",
        "bf16",
        "--modes",
        "infer",
        "latency",
        "train",
        "--forms",
        "eager",
        "optimized",
        "--threads",
        "1",
        "2",
    ]
    settings = list(settings_of(parse_options(Bench, args, "tailprop bench")))
    assert len(settings) == len(set(settings)) == 2 * (2 * 2 * 2 + 1 * 2 * 2 + 2 * 1 * 2)
    assert all(setting.batch_size == 1 for setting in settings if setting.mode == "latency")
    assert not any(setting.mode == "train" and setting.form == "optimized" for setting in settings)
    one = parse_options(Bench, ["--batch", "4", "--size-px", "64"], "tailprop bench")
    assert [(s.mode, s.batch_size, s.size_px) for s in settings_of(one)] == [("infer", 4, 64), ("train", 4, 64)]


def test_suite_has_peers_of_every_kind() -> None:
    suite = Bench(suite="cpu").resolved()
    assert suite.models == CPU_PEERS
    families = (
        "tailprop",
        "convnext",
        "swin",
        "vheat",
        "waveformer",
        "mobilenetv4",
        "repvit",
        "fastvit",
        "lowformer",
        "mambaout",
    )
    assert all(any(model.startswith(family) for model in suite.models) for family in (*families, "convnextv2", "starnet"))
    suite.check()


def test_products_are_those_of_the_model() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 4, 1, stride=2), nn.Flatten(), nn.Linear(64, 5)
    )
    shapes = record_products(model, torch.randn(2, 3, 8, 8))
    assert shapes == Counter({(1, 2 * 64, 3, 8): 1, (1, 2 * 16, 8, 4): 1, (1, 2, 64, 5): 1})
    shapes[(3, 4, 4, 4)] = 2
    products = measure_products(shapes, torch.float32, "cpu", rounds=1)
    assert products.macs == 2 * 64 * 3 * 8 + 2 * 16 * 8 * 4 + 2 * 64 * 5 + 2 * 3 * 64
    assert 0 < products.seconds < 1


def test_rows_come_with_settings_and_products_and_are_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figure = tmp_path / "bench.csv", tmp_path / "bench.png"
    args = [*SMALL, "--modes", "infer", "--products", "--out", str(out), "--figure", str(figure)]
    assert tailprop_cli.main(["bench", *args]) == 0
    before = read(out)
    assert [row["model"] for row in before] == SMALL[1:3]
    assert all(float(row["img_per_s_best"]) > 0 and int(row["macs"]) > 0 and float(row["products_share"]) > 0 for row in before)
    assert before[0]["first_over_this"] == "1.000"
    assert (before[0]["form"], before[0]["dtype"], before[0]["batch_size"]) == ("eager", "float32", "1")
    with Image.open(figure) as drawn:
        assert drawn.width > 500
    resumed = [*args[:-2], "--forms", "eager", "optimized", "--resume"]
    assert tailprop_cli.main(["bench", *resumed]) == 0
    now = read(out)
    assert now[:2] == before
    assert [row["form"] for row in now[2:]] == ["optimized", "optimized"]
    assert all(row["chosen"] for row in now[2:])
    capsys.readouterr()
    out.write_text("a,b\n1,2\n")
    assert tailprop_cli.main(["bench", *resumed]) == 2
    assert "is not a file of this benchmark" in capsys.readouterr().err
    for damaged, message in (
        (b'a,"b\n1,2', "bench.csv is corrupt"),
        (b"a,b\xff\n1,2", "bench.csv is not a text file"),
    ):
        out.write_bytes(damaged)
        assert tailprop_cli.main(["bench", *resumed]) == 2
        assert message in capsys.readouterr().err


def test_failing_model_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def create(name: str, *args: Any) -> nn.Module:
        if name.startswith("mobilenet"):
            raise RuntimeError("no such layer\nand more")
        return steps.create_model(name, *args)

    monkeypatch.setattr(models, "create_model", create)
    out = tmp_path / "bench.csv"
    assert tailprop_cli.main(["bench", *SMALL, "--modes", "infer", "--out", str(out)]) == 0
    rows = read(out)
    assert [row["failed"] for row in rows] == ["", "no such layer"]
    assert rows[1]["img_per_s_best"] == ""
    assert "no such layer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--forms"], "no forms given; give at least one"),
        (["--batch-size", "0"], "batch_size must be at least 1, got 0"),
        (["--resume"], "--resume needs --out"),
    ],
)
def test_wrong_options_are_refused(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tailprop_cli.main(["bench", "--models", "tailprop_pico", *args]) == 2
    assert message in capsys.readouterr().err


def test_load_of_other_programs_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([(10.0, 100.0), (13.0, 102.0), (9.0, 103.0)])  # seconds of others, clock
    monkeypatch.setattr(load, "_busy_seconds", lambda: next(readings))
    other = load.OtherLoad()
    assert other.cores() == 1.5
    assert other.cores() == 0  # our own time may be rounded up
    monkeypatch.setattr(load, "_busy_seconds", lambda: None)
    assert load.OtherLoad().cores() is None


def test_own_time_is_not_the_load_of_others() -> None:
    own, others = sum(os.times()[:4]), load._busy_seconds()
    if others is None:  # where a system does not count, no load is reported
        assert load.OtherLoad().cores() is None
        return
    while sum(os.times()[:4]) < own + 0.2:
        pass
    (before, began), (after, now) = others, load._busy_seconds()
    cores = os.cpu_count() or 1
    assert -0.1 <= after - before <= cores * (now - began) - 0.2 + 0.1
