"""Shipped models: found by name, intact, small, described, reproducible, and better than doing nothing."""

import io
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data as photographs

import tailprop
import tailprop_cli
from tailprop.commands import predict
from tailprop.engine.checkpoint import read_state_dict
from tailprop.engine.integrity import check_intact
from tailprop.engine.recipes import find_recipe, read_recipe
from tailprop.engine.run_settings import find_settings, find_task_name, find_weights, read_metadata
from tailprop.engine.settings import build, portable
from tailprop.engine.shipped import SHIPPED_FOLDER, locate, shipped_names
from tailprop.tasks import find_spec
from tailprop.tasks.restore.metrics import psnr
from tailprop.utils.parsing import parse_json

MOST_BYTES, MOST_BYTES_TOGETHER = 3_000_000, 15_000_000
each_model = pytest.mark.parametrize("name", shipped_names())
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def colour_crop() -> Pixels:
    return photographs.coffee()[100:228, 200:328]


def gray_crop() -> Pixels:
    return photographs.camera()[100:228, 200:328, None]


def test_the_restorers_are_there() -> None:
    assert {"denoise", "unjpeg"} <= set(shipped_names())


@each_model
def test_files(name: str) -> None:
    """Small, with the hash that is verified when they are read, and the line that `tailprop models` prints."""
    weights = find_weights(name)
    assert weights == SHIPPED_FOLDER / name / "model.safetensors"
    assert len(read_metadata(weights)["sha256"].strip("0")) > 32
    check_intact(weights)
    assert weights.stat().st_size <= MOST_BYTES
    assert {value.dtype for value in read_state_dict(weights).values() if value.is_floating_point()} == {torch.float16}
    row = parse_json((SHIPPED_FOLDER / name / "model.json").read_bytes(), "model.json")
    assert row["bytes"] == weights.stat().st_size
    assert row["task"] == find_task_name(name, "")
    assert row["parameters"] == sum(value.numel() for value in read_state_dict(weights).values())


def test_all_together_are_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED_FOLDER.rglob("*") if path.is_file()) <= MOST_BYTES_TOGETHER


@each_model
def test_card_and_recipe(name: str) -> None:
    card = (SHIPPED_FOLDER / name / "README.md").read_text()
    for heading in ("## Data", "## Measured", "## Limits", "## Made by"):
        assert heading in card, heading
    assert "icence" in card
    assert f"tailprop train {name}" in card
    recipe = read_recipe(find_recipe(name))
    config = find_spec(recipe["task"]).config_type()
    found = find_settings(name)
    assert found is not None
    trained, reproduced = (portable(build(config, values)) for values in (found, recipe))
    assert trained["model"] == reproduced["model"]
    assert trained["data"] == reproduced["data"]


@each_model
def test_loads_by_name_in_single_precision_without_network(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    predictor = tailprop.load(name)
    assert {parameter.dtype for parameter in predictor.model.parameters()} == {torch.float32}
    stored = read_state_dict(find_weights(name))
    assert all(torch.equal(value, stored[key].to(value.dtype)) for key, value in predictor.model.state_dict().items())


@pytest.mark.parametrize("sigma", [10, 25, 50])
@pytest.mark.parametrize("clean", [colour_crop(), gray_crop()], ids=["colour", "gray"])
def test_denoise_removes_noise(clean: Pixels, sigma: int) -> None:
    noise = np.random.default_rng(0).normal(0, sigma, clean.shape)
    noisy = np.clip(clean + noise, 0, 255).round().astype(np.uint8)
    restored = tailprop.load("denoise").predict(noisy)
    assert restored.shape == clean.shape
    assert psnr(restored, clean) > psnr(noisy, clean) + {10: 2.5, 25: 4.0, 50: 6.0}[sigma]


@pytest.mark.parametrize("quality", [10, 40])
@pytest.mark.parametrize("clean", [colour_crop(), gray_crop()], ids=["colour", "gray"])
def test_unjpeg_removes_artefacts(clean: Pixels, quality: int) -> None:
    file = io.BytesIO()
    Image.fromarray(clean.squeeze()).save(file, "jpeg", quality=quality)
    decoded = np.asarray(Image.open(file)).reshape(clean.shape)
    restored = tailprop.load("unjpeg").predict(decoded)
    assert psnr(restored, clean) > psnr(decoded, clean) + 0.3


def test_what_exists_under_a_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("denoise") == SHIPPED_FOLDER / "denoise"
    assert locate("./denoise") == Path("denoise")  # a path is never a name
    Path("denoise").mkdir()
    assert locate("denoise") == Path("denoise")
    with pytest.raises(ValueError, match=r"denoise contains no model\.safetensors"):
        tailprop.load("denoise")


@pytest.mark.parametrize(
    ("args", "task"),
    [
        (["denoise", "photo.jpg"], "restore"),
        (["denoise", "photo.jpg", "--tile-px", "128"], "restore"),
        (["--threads", "1", "denoise", "photo.jpg"], "restore"),
    ],
)
def test_commands_take_names(args: list[str], task: str) -> None:
    command = predict.parse(args)
    assert command.spec.name == task
    assert command.options.checkpoint == "denoise"


def test_a_name_after_an_option_is_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run folder comes before a name, so the output folder may be called denoise."""
    monkeypatch.chdir(tmp_path)
    run = Path("runs/mine")
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("task: classify\nmodel: {}\ndata: {}\n")
    assert predict.parse(["--out", "denoise", str(run), "photo.jpg"]).spec.name == "classify"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("denoize", "did you mean denoise?"),
        ("denois", "did you mean denoise?"),
        ("nothing", "shipped models are "),
        ("a/b", ""),
    ],
)
def test_unknown_names(name: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"no checkpoint at {name}") as raised:
        find_weights(name)
    assert hint in str(raised.value)
    assert ("; " in str(raised.value)) == bool(hint)


def test_a_typing_error_is_answered_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert tailprop_cli.main(["predict", "denoize", "photo.jpg"]) == 2
    assert capsys.readouterr().err == "tailprop: no checkpoint at denoize; did you mean denoise?\n"


def test_models_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert tailprop_cli.main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in shipped_names():
        assert any(line.startswith(f"{name} ") and " MB " in line and " dB" in line for line in lines), name


def test_damage_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tailprop.engine.shipped as shipped

    content = bytearray(find_weights("denoise").read_bytes())
    content[-1000] ^= 1
    (tmp_path / "denoise").mkdir()
    (tmp_path / "denoise" / "model.safetensors").write_bytes(content)
    monkeypatch.setattr(shipped, "SHIPPED_FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(ValueError, match="SHA-256 does not match"):
        tailprop.load("denoise")


def test_training_starts_from_a_name() -> None:
    from tailprop.tasks.restore.config import RestorerConfig
    from tailprop.tasks.restore.task import build_restorer

    model = build_restorer(RestorerConfig("tailprop_unet", init="denoise", in_chans=3), report=False)
    stored = read_state_dict(find_weights("denoise"))
    assert torch.equal(model.state_dict()["conv_in.weight"], stored["conv_in.weight"].float())
