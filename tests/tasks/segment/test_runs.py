"""Runs of a segmenter by the command line: training, resume, two processes, eval, predict, bench, broken files."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import tailprop_cli
from tailprop.data.formats.label_maps import ClassList, read_classes
from tailprop.data.shapes.render import SHAPES, SceneConfig
from tailprop.data.shapes.write import write_ade20k
from tailprop.engine.settings import build, portable
from tailprop.tasks.segment.config import SegmentConfig, SegmentDataConfig, SegmenterConfig
from tailprop.tasks.segment.load import load_segmenter
from tailprop.tasks.segment.options import SegmentDataChoice
from tests.helpers.runs import fork, last_row, losses, train

SMALL = SegmenterConfig(channels=16, aux_channels=8)
SWIN = "swin_tiny_patch4_window7_224"
NARROW = dict(depths=[1, 1, 1, 1], dims=[8, 16, 24, 32])


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    write_ade20k(root, SceneConfig(size_px=64, crowd=0.3), 8, 5)
    return root


def write_recipe(path: Path, root: Path, **changes: dict[str, Any]) -> Path:
    settings: dict[str, Any] = {
        "task": "segment",
        "model": {"name": "tailprop_pico", "drop_path": 0.2, "args": NARROW},
        "segmenter": {"channels": 16, "aux_channels": 8},
        "data": {"root": str(root), "short_px": 64, "long_px": 64, "workers": 0},
        "augment": {"crop_px": 48},
        "inference": {"window_px": 48, "stride_px": 32},
        "optim": {
            "epochs": 2,
            "batch_size": 2,
            "lr": 1e-3,
            "lr_base_size": None,
            "warmup_epochs": 0,
            "sched": "poly",
            "min_lr": 0,
        },
        "run": {"threads": 1, "device": "cpu", "log_every": 1, "save_every": 1, "tensorboard": False},
    }
    settings = {k: (v | changes.get(k, {}) if isinstance(v, dict) else v) for k, v in settings.items()}
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture(scope="module")
def run(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(write_recipe(tmp_path_factory.mktemp("run") / "small.yaml", scenes))


def test_training_writes_a_complete_run_folder(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "manifest.json", "model.safetensors", "learning.png", "predictions.jpg"} <= names
    assert {"miou", "pixel_accuracy", "class_accuracy"} <= last_row(run).keys()
    assert json.loads((run / "manifest.json").read_text())["examples"] == {"train": 8, "validation": 5}
    assert load_segmenter(str(run)).names == ("ground", *SHAPES)


def test_two_processes_match_one(scenes: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", scenes, optim={"epochs": 1})
    done = fork(["train", str(recipe), "--run.out", str(tmp_path / "run")], processes=2)
    assert done.returncode == 0, done.stderr
    assert len(losses(tmp_path / "run")) == 2
    args = ["eval", str(tmp_path / "run"), "--device", "cpu", "--threads", "1", "--out", str(tmp_path / "alone.json")]
    assert tailprop_cli.main(args) == 0
    alone, together = json.loads((tmp_path / "alone.json").read_text()), last_row(tmp_path / "run")
    names = ("miou", "pixel_accuracy", "class_accuracy")
    assert [alone[name] for name in names] == [together[name] for name in names]  # sums of integers need no tolerance


def test_eval_matches_classes_by_name(run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    shutil.copytree(scenes, other)
    names = (other / "objectInfo150.txt").read_text().splitlines()[1:]
    (other / "objectInfo150.txt").unlink()
    (other / "classes.txt").write_text("\n".join(row.split("\t")[-1] for row in names[::-1]) + "\n")  # from 0 on, backwards
    for path in (other / "annotations" / "validation").iterdir():
        labels = np.asarray(Image.open(path)).astype(int)
        Image.fromarray(np.where(labels == 0, 255, len(names) - labels).astype(np.uint8)).save(path)
    found = []
    for more in (["--data.root", str(scenes)], ["--data.root", str(other)]):
        out = tmp_path / "numbers.json"
        assert tailprop_cli.main(["eval", str(run), "--device", "cpu", *more, "--out", str(out)]) == 0
        found.append(json.loads(out.read_text()))
    assert found[0] == found[1]
    assert "mean IoU" in capsys.readouterr().out
    (other / "classes.txt").write_text("unicorn\n")
    assert tailprop_cli.main(["eval", str(run), "--data.root", str(other)]) == 2
    assert "has classes that the model does not have: unicorn" in capsys.readouterr().err
    assert tailprop_cli.main(["eval", str(run), "--split", "train", "--data.val-images", "images/training"]) == 2
    assert "leave out --split train" in capsys.readouterr().err


def test_eval_uses_the_class_list_of_the_dataset(tmp_path: Path) -> None:
    """Not that of the run, whose first label may differ."""
    (tmp_path / "classes.txt").write_text("sky\nperson\n")
    (tmp_path / "bare").mkdir()
    of_run = SegmentDataConfig(root=tmp_path / "ade", classes="ade20k", first_label=1, limit=5)
    own = SegmentDataChoice(root=tmp_path).over(of_run)
    assert (own.classes, own.first_label, own.limit) == (None, None, None)
    bare = SegmentDataChoice(root=tmp_path / "bare").over(of_run)  # without a list, that of the run
    assert (bare.classes, bare.first_label) == ("ade20k", 1)
    given = SegmentDataChoice(classes="table.txt").over(of_run)
    assert (given.classes, given.first_label, given.limit) == ("table.txt", None, 5)
    assert SegmentDataChoice(classes="table.txt", first_label=3).over(of_run).first_label == 3


def test_eval_on_the_training_split_respects_the_limit(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["data"]["limit"] = 2
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(settings))
    args = ["eval", str(tmp_path / "run"), "--split", "train", "--device", "cpu", "--out", str(tmp_path / "n.json")]
    assert tailprop_cli.main(args) == 0
    assert json.loads((tmp_path / "n.json").read_text())["count"] == 2


def test_predict_writes_label_maps_and_overlays(
    run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    odd = tmp_path / "odd.jpg"
    Image.new("RGB", (77, 41), "teal").save(odd)
    out = tmp_path / "out"
    args = ["predict", str(run), str(scenes / "images" / "validation"), str(odd), str(tmp_path / "broken.jpg")]
    args += ["--out", str(out), "--device", "cpu", "--inference.scales", "0.75", "1", "--inference.flip", "True"]
    assert tailprop_cli.main(args) == 0
    assert "skipped" in capsys.readouterr().err
    labels = np.asarray(Image.open(out / "odd.png"))
    assert labels.shape == (41, 77)
    assert 1 <= labels.min() <= labels.max() <= 7  # labels as in the training data
    with Image.open(out / "odd_overlay.jpg") as drawn:
        assert drawn.width == 5 * 77  # enlarged
        assert drawn.height > 5 * 41  # a legend below
    assert read_classes(out / "classes.txt") == ClassList(("ground", *SHAPES), first_label=1)
    # The output can be read as a dataset; evaluated against itself it is perfect.
    data = ["--data.root", str(tmp_path), "--data.val-images", str(scenes / "images" / "validation")]
    data += ["--data.val-labels", str(out), "--data.classes", str(out / "classes.txt"), "--data.on-broken", "skip"]
    data += ["--inference.scales", "0.75", "1", "--inference.flip", "True", "--out", str(tmp_path / "self.json")]
    assert tailprop_cli.main(["eval", str(run), "--device", "cpu", *data]) == 0
    assert json.loads((tmp_path / "self.json").read_text())["miou"] == 100
    capsys.readouterr()
    assert tailprop_cli.main(args) == 2  # an existing label map is not overwritten
    assert "give --overwrite" in capsys.readouterr().err
    assert tailprop_cli.main([*args, "--on-broken", "stop", "--overwrite"]) == 2
    capsys.readouterr()
    Image.new("RGB", (64, 64)).save(tmp_path / "own.png")
    assert tailprop_cli.main(["predict", str(run), str(tmp_path / "own.png"), "--out", str(tmp_path), "--device", "cpu"]) == 2
    assert "would be overwritten" in capsys.readouterr().err


def test_weights_without_run_folder(run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(run / "model.safetensors", tmp_path / "mine.safetensors")
    (tmp_path / "config.yaml").write_text("somebody: else\n")
    found = []
    for where in (run, tmp_path / "mine.safetensors"):
        args = ["eval", str(where), "--data.root", str(scenes), "--device", "cpu", "--out", str(tmp_path / "numbers.json")]
        assert tailprop_cli.main(args) == 0
        found.append(json.loads((tmp_path / "numbers.json").read_text()) | {"checkpoint": ""})
    assert [numbers.pop("training_images") for numbers in found] == [0, None]  # only the run folder has its training data
    assert found[0] == found[1]
    capsys.readouterr()
    assert tailprop_cli.main(["eval", str(tmp_path / "mine.safetensors")]) == 2  # exported weights have no local paths
    assert "--data.root is missing" in capsys.readouterr().err


def test_exported_weights_have_no_local_paths() -> None:
    data = {
        "root": "/home/me/data",
        "classes": "/home/me/list.txt",
        "train_images": "/home/me/a",
        "val_images": "b",
        "short_px": 64,
    }
    settings = {
        "task": "segment",
        "model": {"name": "tailprop_pico", "init": "/home/me/run"},
        "data": data,
        "run": {"out": "x"},
    }
    carried = portable(build(SegmentConfig, settings))
    assert carried["data"].keys().isdisjoint({"root", "classes", "train_images", "workers"})
    assert (carried["data"]["val_images"], carried["data"]["short_px"]) == ("b", 64)
    assert "init" not in carried["model"]
    assert "run" not in carried
    assert "/home/me" not in str(carried)
    assert portable(build(SegmentConfig, settings | {"data": {"classes": "ade20k"}}))["data"]["classes"] == "ade20k"


def test_eval_reports_skipped_files(run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    for folder in ("images", "annotations"):
        (root / folder / "validation").mkdir(parents=True)
    shutil.copy(scenes / "objectInfo150.txt", root)
    image = min((scenes / "images" / "validation").iterdir())
    shutil.copy(image, root / "images" / "validation")
    Image.new("L", (64, 64), 77).save(root / "annotations" / "validation" / f"{image.stem}.png")
    for how in ("stop", "skip"):
        assert tailprop_cli.main(["eval", str(run), "--data.root", str(root), "--data.on-broken", how, "--device", "cpu"]) == 2
        assert f"{image.stem}.png: it has labels that are not a class: 77" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("label", "ADE_train_00000001.png: it has labels that are not a class: 77 (4096 pixels); the 7 classes are 1 to 7"),
        ("size", "ADE_train_00000001.png: it is 32x32, but its image"),
        ("missing", "ADE_train_00000001.jpg: its label map"),
        ("unreadable", "ADE_train_00000001.jpg: not an image"),
    ],
)
def test_broken_files_stop_a_run_or_are_skipped(
    damage: str, message: str, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    shutil.copytree(scenes, root)
    image = root / "images" / "training" / "ADE_train_00000001.jpg"
    labels = root / "annotations" / "training" / "ADE_train_00000001.png"
    if damage == "label":
        Image.new("L", (64, 64), 77).save(labels)
    elif damage == "size":
        Image.new("L", (32, 32), 1).save(labels)
    elif damage == "missing":
        labels.unlink()
    else:
        image.write_bytes(b"")
    recipe = write_recipe(tmp_path / "r.yaml", root, optim={"epochs": 1})
    args = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert tailprop_cli.main(args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "--data.on-broken skip" in error
    assert tailprop_cli.main([*args, "--data.on-broken", "skip", "--run.overwrite"]) == 0
    assert message in capsys.readouterr().err
    assert last_row(tmp_path / "run")["broken"] == 1


def test_bench_writes_csv(tmp_path: Path) -> None:
    out = tmp_path / "bench.csv"
    size = ["--height", "64", "--width", "96", "--rounds", "1", "--threads", "1", "--segmenter.channels", "16"]
    assert tailprop_cli.main(["bench", "segment", "--models", "tailprop_pico", "convnext_atto", *size, "--out", str(out)]) == 0
    header, first, second = out.read_text().splitlines()
    assert header.startswith("model,parameters,macs,paper_gmacs,over_paper,img_per_s_best")
    assert first.startswith("tailprop_pico,")
    assert float(first.split(",")[7]) == 1.0
    assert second.startswith("convnext_atto,")
