"""Detectors from training to prediction, on generated scenes."""

import contextlib
import io
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from pycocotools.coco import COCO

import tailprop_cli
from tailprop.coco_scores import METRICS, score_results
from tailprop.data.scenes import write_coco
from tailprop.data.synthetic import SceneConfig
from tests.detecting import validation_set, write_recipe
from tests.runs import assert_same_run, last_row, launch, losses, stop_and_go_on


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    write_coco(root, SceneConfig(size_px=64, crowd=0.3), 8, 6)
    return root


@pytest.fixture(scope="module")
def run(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    recipe = write_recipe(folder / "small.yaml", scenes)
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(folder / "run")]) == 0
    return folder / "run"


def test_training_leaves_a_whole_run_folder(run: Path, scenes: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "manifest.json", "model.safetensors", "learning.png", "pictures.jpg", "detections.json"} <= names
    row, part = last_row(run), validation_set(scenes)
    assert set(METRICS) <= row.keys()
    results = json.loads((run / "detections.json").read_text())
    assert len({entry["image_id"] for entry in results}) > 1
    assert score_results(part.ground_truth(), results)["box_ap"] == pytest.approx(row["box_ap"])


def test_a_stopped_run_ends_with_the_same_weights(
    run: Path, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", scenes)
    stop_and_go_on(recipe, tmp_path / "again", 3, monkeypatch)
    assert_same_run(run, tmp_path / "again")


def test_two_processes_train_and_evaluate_exactly(scenes: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", scenes, optim={"epochs": 1, "batch": 1})
    done = launch(["train", str(recipe), "--run.out", str(tmp_path / "run")], processes=2)
    assert done.returncode == 0, done.stderr
    args = ["eval", str(tmp_path / "run"), "--out", str(tmp_path / "1.json"), "--results", str(tmp_path / "r.json")]
    assert tailprop_cli.main(args) == 0  # alone
    alone, together = json.loads((tmp_path / "1.json").read_text()), last_row(tmp_path / "run")
    assert {name: alone[name] for name in METRICS} == pytest.approx({name: together[name] for name in METRICS})
    ours, theirs = ((tmp_path / "r.json").read_text(), (tmp_path / "run" / "detections.json").read_text())
    assert json.loads(ours) == json.loads(theirs)


def test_eval_matches_categories_by_name(run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    shutil.copytree(scenes, other)
    path = other / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    for entry in content["categories"]:
        entry["id"] *= 10
    for entry in content["annotations"]:
        entry["category_id"] *= 10
    path.write_text(json.dumps(content))
    for root, name in ((scenes, "a"), (other, "b")):
        assert tailprop_cli.main(["eval", str(run), "--data.root", str(root), "--out", str(tmp_path / f"{name}.json")]) == 0
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    content["categories"][0]["name"] = "unicorn"
    path.write_text(json.dumps(content))
    assert tailprop_cli.main(["eval", str(run), "--data.root", str(other)]) == 2
    assert "categories that the detector does not know: unicorn" in capsys.readouterr().err


def test_predict_draws_and_writes_coco(run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    picture = next((scenes / "val2017").iterdir())
    args = ["predict", str(run), str(picture), str(tmp_path / "broken.jpg"), "--score", "0", "--out", str(tmp_path / "out")]
    assert tailprop_cli.main(args) == 0
    assert "skipped" in capsys.readouterr().err
    with Image.open(tmp_path / "out" / f"{picture.stem}.jpg") as drawn:
        assert drawn.size == (384, 384)  # six times as large: names would hide what they name
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(tmp_path / "out" / "detections.json"))  # a whole file, which COCO's own reader takes
    annotations = coco.loadAnns(coco.getAnnIds())
    assert annotations
    assert all(coco.annToMask(a).shape == (64, 64) for a in annotations)
    assert tailprop_cli.main([*args, "--on-broken", "stop"]) == 2


def test_weights_without_their_run(run: Path, scenes: Path, tmp_path: Path) -> None:
    shutil.copy(run / "model.safetensors", tmp_path / "mine.safetensors")
    for name, where in (("run", run), ("mine", tmp_path / "mine.safetensors")):
        args = ["predict", str(where), str(scenes / "val2017"), "--score", "0", "--out", str(tmp_path / name)]
        assert tailprop_cli.main(args) == 0
    assert (tmp_path / "mine" / "detections.json").read_text() == (tmp_path / "run" / "detections.json").read_text()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("polygon", "annotation 1: its polygon is broken"),
        ("category", "annotation 1: its category 99 is unknown"),
        ("missing", "the picture is missing"),
        ("unreadable", "not a picture"),
    ],
)
def test_damage_stops_a_run_or_is_left_out(
    damage: str, message: str, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    shutil.copytree(scenes, root)
    path = root / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    if damage == "polygon":
        content["annotations"][0]["segmentation"] = [[1, 2, 3]]
    elif damage == "category":
        content["annotations"][0]["category_id"] = 99
    elif damage == "missing":
        (root / "train2017" / content["images"][0]["file_name"]).unlink()
    else:
        (root / "train2017" / content["images"][0]["file_name"]).write_bytes(b"")
    path.write_text(json.dumps(content))
    recipe = write_recipe(tmp_path / "r.yaml", root, optim={"epochs": 1})
    args = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert tailprop_cli.main(args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "--data.on-broken skip" in error
    assert tailprop_cli.main([*args, "--data.on-broken", "skip", "--run.overwrite"]) == 0
    assert message in capsys.readouterr().err
    assert last_row(tmp_path / "run")["broken"] == 1


def test_pictures_without_objects(scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    shutil.copytree(scenes, root)
    path = root / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    gone = {image["id"] for image in content["images"][:4]}
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] not in gone]
    path.write_text(json.dumps(content))
    recipe = write_recipe(tmp_path / "r.yaml", root, optim={"epochs": 1})
    for more, steps, said in (([], 2, True), (["--data.keep-empty"], 4, False)):
        out = tmp_path / str(steps)
        assert tailprop_cli.main(["train", str(recipe), "--run.out", str(out), *more]) == 0
        assert len(losses(out)) == steps
        assert ("4 of 8 training pictures show no object" in capsys.readouterr().out) == said


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "coco_maskrcnn_tiny_1x"], "--data.root is missing"),
        (["train", "coco_maskrcnn_tiny_1x", "--data.root", "nowhere"], "no annotation file nowhere/annotations"),
        (["train", "shapes_maskrcnn", "--detector.anchor-px", "8", "16"], "detector.anchor_px needs 5 sides"),
        (["train", "shapes_maskrcnn", "--model.name", "resnet_zero"], "timm has no model 'resnet_zero'"),
        (["train", "shapes_maskrcnn", "--data.long-px", "64"], "data.long_px must be at least 128"),
        (["bench", "detect", "--models", "tailprop_huge"], "timm has no model 'tailprop_huge'"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tailprop_cli.main(args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
