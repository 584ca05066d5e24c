"""Run folders written before settings were renamed: they are still resumed, evaluated and loaded.

The fixtures were stopped by SIGTERM in their second epoch by the program as it was then; `expected.safetensors` is what it made
of the same run undisturbed.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tailprop
import tailprop_cli
from tailprop.engine.run_settings import read_config
from tests.helpers import FIXTURES


@pytest.fixture(params=["classify", "segment"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.copytree(FIXTURES / "runs_before" / request.param, tmp_path / request.param)
    return tmp_path / request.param


def place(run: Path) -> list[str]:
    """Set the data paths of this machine; scenes are generated again."""
    return ["--data.root", str(run.parent / "scenes")] if run.name == "segment" else []


def test_old_run_resumes_to_the_same_weights(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_config(run)
    assert "batch" in before["optim"]  # it has the old names
    assert tailprop_cli.main(["train", str(run), "--run.resume", *place(run)]) == 0
    assert "resumed from step" in capsys.readouterr().out
    expected, found = load_file(run / "expected.safetensors"), load_file(run / "model.safetensors")
    assert expected.keys() == found.keys()
    for name, value in expected.items():  # bit-identical on the machine that wrote them
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4)
    after = read_config(run)
    assert after["optim"]["batch_size"] == before["optim"]["batch"]
    if run.name == "classify":
        assert (after["optim"]["name"], after["optim"]["muon_lr_scale"]) == ("muon", 4.0)
        assert after["data"]["crop_pct"] == 1.0
    else:
        assert after["augment"]["cat_max_ratio"] == before["augment"]["most_of_one"] == 0.9


def test_old_run_is_not_resumed_with_other_settings(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tailprop_cli.main(["train", str(run), "--run.resume", "--optim.lr", "1", *place(run)]) == 2
    assert "was started with other settings (optim.lr)" in capsys.readouterr().err


def test_old_weights_load(run: Path) -> None:
    (run / "config.yaml").unlink()
    loaded = tailprop.load(run / "expected.safetensors")
    assert len(loaded.names) == {"classify": 10, "segment": 7}[run.name]
    assert loaded.settings.optim.batch_size == {"classify": 100, "segment": 2}[run.name]
    loaded.predict(torch.rand(3, 48, 64))


def test_old_option_names_work_on_the_command_line(tmp_path: Path) -> None:
    command = ["train", "digits", "--optim.batch", "600", "--optim.accumulate", "1", "--optim.epochs", "1"]
    small = ["--model.args", "depths=[1]", "dims=[8]", "--run.out", str(tmp_path / "run")]
    assert tailprop_cli.main([*command, *small, "--optim.clip=1.0"]) == 0
    kept = read_config(tmp_path / "run")
    assert (kept["optim"]["batch_size"], kept["optim"]["clip_grad"]) == (600, 1.0)
    assert kept["model"]["args"] == {"depths": [1], "dims": [8]}
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["batch_size"] == 600
