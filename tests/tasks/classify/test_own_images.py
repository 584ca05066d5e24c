"""Common first steps with a folder of own images."""

import json
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import tailprop_cli
from tailprop.engine.recipes import find_recipe, read_recipe
from tailprop.engine.run_settings import read_config
from tailprop.engine.settings import build
from tailprop.tasks.classify.config import ClassifyConfig
from tailprop.tasks.classify.load import load_classifier
from tailprop.tasks.classify.options import DataChoice
from tailprop.tasks.classify.sources import Folder
from tests.helpers.folders import folder_recipe, jpeg, make_folder
from tests.helpers.runs import assert_refused, write_recipe


def test_resize_px_follows_size_px() -> None:
    config = build(ClassifyConfig, read_recipe(find_recipe("imagenet1k_tiny")))
    assert config.data.eval_resize_px == 256
    assert config.data.at_size(64).eval_resize_px == 73
    assert DataChoice(size_px=112, root=Path()).over(config.data).eval_resize_px == 128
    assert DataChoice(size_px=64, resize_px=64, root=Path()).over(config.data).eval_resize_px == 64


def test_smaller_size_px_keeps_crop_pct(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The classes differ at the edge of the images, which a center crop of 64 px from 256 px would remove."""
    root = tmp_path / "images"
    for split in ("train", "val"):
        for label, name in enumerate(("bright edge", "dark edge")):
            (root / split / name).mkdir(parents=True)
            for k in range(3):
                pixels = np.full((80, 80, 3), 128 + k, dtype=np.uint8)
                pixels[:12] = 255 * (1 - label)
                Image.fromarray(pixels).save(root / split / name / f"{k}.png")
    common = ["--optim.batch-size", "6", "--data.workers", "0", "--model.args", "depths=[1,1]", "dims=[8,16]"]
    short = ["--optim.epochs", "1", "--run.out", str(tmp_path / "run"), "--run.threads", "1", "--model.name", "tailprop_pico"]
    command = ["train", "finetune_folder", "--data.root", str(root), "--data.size-px", "64", *common, *short]
    assert tailprop_cli.main(command) == 0
    printed = capsys.readouterr()
    assert "2 classes (bright edge, dark edge)" in printed.out
    assert "evaluation crops" not in printed.err
    seen = load_classifier(tmp_path / "run").transform()(Image.open(root / "val" / "bright edge" / "0.png").convert("RGB"))
    assert seen[:, :4].mean() > seen[:, 30:].mean() + 1  # the edge is visible
    assert tailprop_cli.main([*command, "--run.overwrite", "--data.resize-px", "256"]) == 0
    assert "evaluation crops the central 64 of 256 px" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("train", "val"), [("Train", "Val"), ("TRAINING", "Validation"), ("train", "VALID"), ("Training", "Test")]
)
def test_split_folder_names_are_case_insensitive(train: str, val: str, tmp_path: Path) -> None:
    make_folder(tmp_path, count=2, splits=(train, val))
    for split, name in (("train", train), ("validation", val)):
        source = Folder(tmp_path, split)
        assert source.classes == ("blue", "red")
        assert all(path.is_relative_to(tmp_path / name) for path in source.paths)


def test_model_args_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1})
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert tailprop_cli.main([*command, "--model.args", "mixer=cauchy", "mixer_args.scale_init=0.3"]) == 0
    kept = read_config(tmp_path / "run")["model"]["args"]  # in addition to those of the recipe
    assert kept == {"depths": [1, 1], "dims": [8, 16], "mixer": "cauchy", "mixer_args": {"scale_init": 0.3}}
    mixer = load_classifier(tmp_path / "run").model.stages[0].layers[0].block.mixer
    assert mixer.orders == (1.0,)
    refused = [*command, "--run.overwrite", "--model.args"]
    assert_refused([*refused, "mixer=magic"], "unknown mixer 'magic'; choose one of 'tailprop'", capsys)
    assert_refused([*refused, "speed=3"], "cannot create tailprop_pico: ", capsys)
    assert_refused([*refused, "speed"], "expected name=value, got 'speed'", capsys)
    assert_refused([*command, "--model.mixer", "cauchy"], "did you mean --model.args?", capsys)


def test_finetune_recipe_defaults_to_a_small_model() -> None:
    config = build(ClassifyConfig, read_recipe(find_recipe("finetune_folder")))
    assert config.model.name in ("tailprop_pico", "tailprop_nano")
    assert config.data.size_px <= 160
    assert config.data.workers <= 2


def test_error_for_more_epochs_gives_the_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1}), tmp_path / "run"
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run)]) == 0
    longer = ["train", str(run), "--run.resume", "--optim.epochs", "3"]
    assert_refused(longer, f"start a new run from its weights: --model.init {run} --run.out OTHER", capsys)
    new = ["train", str(recipe), "--optim.epochs", "1", "--model.init", str(run), "--run.out", str(tmp_path / "longer")]
    assert tailprop_cli.main(new) == 0
    assert "warm start: " in capsys.readouterr().out


def test_checkpoint_of_timm_train_script_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = timm.create_model("tailprop_pico", num_classes=2, depths=(1, 1, 1, 1), dims=(8, 8, 8, 8))
    payload = dict(epoch=3, arch="tailprop_pico", state_dict=model.state_dict(), args=Namespace(lr=0.1, model="tailprop_pico"))
    torch.save(payload, tmp_path / "last.pth.tar")
    root = make_folder(tmp_path / "images", count=4)
    model_args = ["--model.args", "depths=[1,1,1,1]", "dims=[8,8,8,8]"]
    command = [*folder_recipe(tmp_path, root), *model_args, "--model.init", str(tmp_path / "last.pth.tar")]
    assert tailprop_cli.main(command) == 0
    assert "warm start: " in capsys.readouterr().out
    torch.save(payload | {"extra": Path("x")}, tmp_path / "strange.pth.tar")
    command = [*command[:-1], str(tmp_path / "strange.pth.tar"), "--run.overwrite"]
    assert_refused(command, "save its state_dict alone with timm's clean_checkpoint.py", capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with non-ASCII class names."""
    home = tmp_path_factory.mktemp("home")
    root = make_folder(home / "images", count=4)
    for split in ("train", "val"):
        shutil.move(root / split / "red", root / split / "красный")
    for k in range(4):
        (root / "val" / "blue" / f"{k}.jpg").write_bytes(jpeg(40 + k, (50, 40)))
    assert tailprop_cli.main(folder_recipe(home, root)) == 0
    return home / "run"


@pytest.mark.parametrize("suffix", [".html", ".xlsx"])
def test_unsupported_output_suffix_raises(run: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(run.parent / "images" / "val" / "blue" / "0.jpg")
    assert_refused(["predict", str(run), image, "--out", f"p{suffix}"], "--out writes .csv, .json or .txt", capsys)


def test_json_keeps_non_ascii_names(run: Path, tmp_path: Path) -> None:
    image = str(run.parent / "images" / "val" / "blue" / "0.jpg")
    assert tailprop_cli.main(["predict", str(run), image, "--out", str(tmp_path / "p.json")]) == 0
    assert "красный" in (tmp_path / "p.json").read_text(encoding="utf-8")
    assert tailprop_cli.main(["eval", str(run), "--out", str(tmp_path / "e.json")]) == 0
    assert "красный" in (tmp_path / "e.json").read_text(encoding="utf-8")


def test_eval_reports_precision_and_recall_per_class(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tailprop_cli.main(["eval", str(run), "--out", str(tmp_path / "e.json")]) == 0
    assert "precision, %" in capsys.readouterr().out
    measured = json.loads((tmp_path / "e.json").read_text(encoding="utf-8"))
    classes = measured["classes"]
    assert classes.keys() == {"blue", "красный"}
    right = sum(row["recall"] * row["count"] / 100 for row in classes.values())
    assert 100 * right / measured["count"] == pytest.approx(measured["top1"])


def test_contact_sheets_of_predictions_and_mistakes(run: Path, tmp_path: Path) -> None:
    images = str(run.parent / "images" / "val")
    assert tailprop_cli.main(["predict", str(run), images, "--sheet", str(tmp_path / "sheet.jpg")]) == 0
    with Image.open(tmp_path / "sheet.jpg") as sheet:
        assert sheet.width == 6 * 248 - 8
    shutil.copytree(run.parent / "images", tmp_path / "swapped")
    val = tmp_path / "swapped" / "val"
    shutil.move(val / "blue", val / "other")
    shutil.move(val / "красный", val / "blue")
    shutil.move(val / "other", val / "красный")
    for root in (run.parent / "images", tmp_path / "swapped"):  # correct predictions in one are wrong in the other
        command = ["eval", str(run), "--data.root", str(root), "--images", str(tmp_path / root.name)]
        assert tailprop_cli.main(command) == 0
    assert [(tmp_path / name / "mistakes.jpg").exists() for name in ("images", "swapped")].count(True) >= 1
