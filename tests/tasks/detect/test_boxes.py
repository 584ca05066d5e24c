"""Data with boxes alone: Faster R-CNN from training to prediction, and data in which only some objects have a mask."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tailprop
import tailprop_cli
from tailprop.data.shapes.render import SceneConfig
from tailprop.data.shapes.write import write_coco
from tailprop.tasks.detect.load import load_detector
from tailprop.tasks.detect.metrics import NAMES, RECALLS, score_results
from tests.helpers.detecting import validation_set, write_recipe
from tests.helpers.runs import assert_refused, last_row, train


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("masked")
    write_coco(root, SceneConfig(size_px=64, crowd=0.3), 6, 4)
    return root


@pytest.fixture(scope="module")
def boxes(masked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same scenes without masks: no segmentation in training, and an empty list, as some programs write, in validation."""
    root = tmp_path_factory.mktemp("boxes") / "data"
    shutil.copytree(masked, root)
    change_annotations(root, "train", lambda _, a: a.pop("segmentation"))
    change_annotations(root, "val", lambda _, a: a.update(segmentation=[]))
    return root


@pytest.fixture(scope="module")
def run(boxes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(write_recipe(tmp_path_factory.mktemp("run") / "small.yaml", boxes))


def change_annotations(root: Path, split: str, change: Any) -> None:
    path = root / "annotations" / f"instances_{split}2017.json"
    content = json.loads(path.read_text())
    for number, entry in enumerate(content["annotations"]):
        change(number, entry)
    path.write_text(json.dumps(content))


def test_boxes_alone_train_a_faster_rcnn(run: Path, boxes: Path) -> None:
    row, names = last_row(run), load_file(run / "model.safetensors").keys()
    assert {f"box_{name}" for name in (*NAMES, *RECALLS)} <= row.keys()
    assert not any(name.startswith("mask") for name in row)
    assert 0 < row["val_loss"] < 100
    assert not any("mask" in name for name in names)
    assert json.loads((run / "manifest.json").read_text())["parameters"] == sum(
        value.numel() for name, value in load_file(run / "model.safetensors").items()
    )
    assert {"predictions.jpg", "learning.png"} <= {path.name for path in run.iterdir()}
    results = json.loads((run / "coco_results.json").read_text())
    assert results
    assert not any("segmentation" in entry for entry in results)
    truth = validation_set(boxes, "no").ground_truth()
    assert score_results(truth, results, ["box"])["box_ap"] == pytest.approx(row["box_ap"])


def test_eval_and_predict_boxes(run: Path, boxes: Path, masked: Path, tmp_path: Path) -> None:
    """On data with masks the same boxes are scored; the prediction is a complete COCO file."""
    for root, name in ((boxes, "a"), (masked, "b")):
        args = ["eval", str(run), "--data.root", str(root), "--out", str(tmp_path / f"{name}.json")]
        assert tailprop_cli.main([*args, "--results", str(tmp_path / f"{name}.results.json")]) == 0
    first, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "ab")
    assert first == second
    assert first["box_ap"] == pytest.approx(last_row(run)["box_ap"])
    image = str(next((boxes / "val2017").iterdir()))
    shutil.copy(run / "model.safetensors", tmp_path / "far.safetensors")
    args = ["predict", str(tmp_path / "far.safetensors"), image, "--score", "0", "--out", str(tmp_path / "out")]
    assert tailprop_cli.main(args) == 0
    found = json.loads((tmp_path / "out" / "detections.json").read_text())["annotations"]
    assert found
    assert all(a["area"] == pytest.approx(a["bbox"][2] * a["bbox"][3]) and "segmentation" not in a for a in found)
    predicted = tailprop.load(run).predict(image, score=0.0)
    assert predicted.masks is None
    assert predicted.scores.tolist() == pytest.approx([a["score"] for a in found])


def test_masks_may_be_refused_or_required(
    masked: Path, boxes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", masked, optim={"epochs": 1})
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / "run"), "--detector.masks", "no"]) == 0
    assert "boxes without masks: Faster R-CNN" in capsys.readouterr().out
    assert load_detector(tmp_path / "run").detector.has_masks is False
    required = ["train", str(recipe), "--run.out", str(tmp_path / "new"), "--detector.masks", "yes"]
    assert_refused([*required, "--data.root", str(boxes)], "it has no segmentation, and Mask R-CNN needs masks", capsys)


def test_a_mask_detector_is_scored_on_boxes_alone(masked: Path, boxes: Path, tmp_path: Path) -> None:
    run = train(write_recipe(tmp_path / "small.yaml", masked, optim={"epochs": 1}))
    assert load_detector(run).detector.has_masks
    assert tailprop_cli.main(["eval", str(run), "--data.root", str(boxes), "--out", str(tmp_path / "e.json")]) == 0
    scores = json.loads((tmp_path / "e.json").read_text())
    assert scores["box_ap"] == pytest.approx(last_row(run)["box_ap"])
    assert not any(name.startswith("mask") for name in scores)


def test_data_with_some_masks(masked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One mask makes it data with masks, and what has none is invalid, unless masks are not wanted."""
    root = tmp_path / "data"
    shutil.copytree(masked, root)
    change_annotations(root, "train", lambda number, a: a.pop("segmentation") if number == 2 else None)
    recipe = write_recipe(tmp_path / "small.yaml", root, optim={"epochs": 1})
    args = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert_refused(args, "instances_train2017.json, annotation 3: it has no segmentation", capsys)
    assert_refused(args, "--detector.masks no uses all boxes", capsys)
    assert tailprop_cli.main([*args, "--data.on-broken", "skip"]) == 0
    assert load_detector(tmp_path / "run").detector.has_masks
    assert tailprop_cli.main([*args, "--run.overwrite", "--detector.masks", "no"]) == 0
    assert not load_detector(tmp_path / "run").detector.has_masks


def test_metadata_about_masks_is_checked(run: Path, tmp_path: Path) -> None:
    with safe_open(run / "model.safetensors", "pt") as file:
        notes = {name: value for name, value in file.metadata().items() if name != "sha256"}
    assert notes["masks"] == "no"
    save_file({"a": torch.zeros(1)}, tmp_path / "odd.safetensors", notes | {"masks": "perhaps"})
    with pytest.raises(ValueError, match="has masks 'perhaps', not yes or no"):
        load_detector(tmp_path / "odd.safetensors")
