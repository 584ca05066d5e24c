"""Detectors from training to prediction, on generated scenes."""

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from pycocotools.coco import COCO
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torchvision.models.detection.roi_heads import paste_masks_in_image

import tailprop_cli
from tailprop.data.shapes.render import SceneConfig
from tailprop.data.shapes.write import write_coco
from tailprop.tasks.detect import evaluate as eval_detect
from tailprop.tasks.detect import model as detect_model
from tailprop.tasks.detect.load import load_detector
from tailprop.tasks.detect.metrics import METRICS, score_results, to_results
from tests.helpers.detecting import validation_set, write_recipe
from tests.helpers.runs import assert_refused, fork, last_row, losses, train


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    write_coco(root, SceneConfig(size_px=64, crowd=0.3), 8, 6)
    return root


@pytest.fixture(scope="module")
def run(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(write_recipe(tmp_path_factory.mktemp("run") / "small.yaml", scenes))


def test_training_writes_a_complete_run_folder(run: Path, scenes: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {
        "config.yaml",
        "manifest.json",
        "model.safetensors",
        "learning.png",
        "predictions.jpg",
        "coco_results.json",
    } <= names
    row, part = last_row(run), validation_set(scenes)
    assert set(METRICS) <= row.keys()
    results = json.loads((run / "coco_results.json").read_text())
    assert len({entry["image_id"] for entry in results}) > 1
    assert score_results(part.ground_truth(), results)["box_ap"] == pytest.approx(row["box_ap"])


def test_two_processes_match_one(scenes: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", scenes, optim={"epochs": 1, "batch_size": 1})
    done = fork(["train", str(recipe), "--run.out", str(tmp_path / "run")], processes=2)
    assert done.returncode == 0, done.stderr
    args = ["eval", str(tmp_path / "run"), "--out", str(tmp_path / "1.json"), "--results", str(tmp_path / "r.json")]
    assert tailprop_cli.main(args) == 0  # one process
    alone, together = json.loads((tmp_path / "1.json").read_text()), last_row(tmp_path / "run")
    assert {name: alone[name] for name in METRICS} == pytest.approx({name: together[name] for name in METRICS})
    ours, theirs = ((tmp_path / "r.json").read_text(), (tmp_path / "run" / "coco_results.json").read_text())
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
    assert "instances_val2017.json has classes that the model does not have: unicorn" in capsys.readouterr().err


def test_predict_draws_and_writes_coco(run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    image = next((scenes / "val2017").iterdir())
    args = ["predict", str(run), str(image), str(tmp_path / "broken.jpg"), "--score", "0", "--out", str(tmp_path / "out")]
    assert tailprop_cli.main(args) == 0
    assert "skipped" in capsys.readouterr().err
    with Image.open(tmp_path / "out" / f"{image.stem}.jpg") as drawn:
        assert drawn.size == (384, 384)  # enlarged six times, so that names do not cover the objects
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(tmp_path / "out" / "detections.json"))  # a complete file that pycocotools reads
    annotations = coco.loadAnns(coco.getAnnIds())
    assert annotations
    assert all(coco.annToMask(a).shape == (64, 64) for a in annotations)
    assert [a["area"] for a in annotations] == [coco.annToMask(a).sum() for a in annotations]
    assert tailprop_cli.main([*args, "--on-broken", "stop"]) == 2


def test_corrupt_weights_raise(run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = next((scenes / "val2017").iterdir())
    for layer in ("roi_heads.box_predictor.cls_score.weight", "backbone.norms.0.weight"):
        with safe_open(run / "model.safetensors", "pt") as file:
            notes = {name: value for name, value in file.metadata().items() if name != "sha256"}
        weights = load_file(run / "model.safetensors")
        weights[layer] = torch.full_like(weights[layer], torch.nan)
        save_file(weights, tmp_path / "damaged.safetensors", notes)
        for args in (["predict", str(image), "--out", str(tmp_path / "out")], ["eval", "--data.root", str(scenes)]):
            assert_refused(
                [args[0], str(tmp_path / "damaged.safetensors"), *args[1:]], "the model's output is not finite", capsys
            )


def test_lower_score_threshold_than_the_runs(run: Path, scenes: Path) -> None:
    detector, image = load_detector(str(run)), Image.open(next((scenes / "val2017").iterdir()))
    detector.detector.roi_heads.score_thresh = 0.9
    few, many = (detector.predict(image, score=score) for score in (0.9, 0.0))
    assert len(many) > len(few)
    assert len(to_results(1, detector.find(image, score=0.0), detector.category_ids)) == len(many)
    assert detector.detector.roi_heads.score_thresh == 0.9  # restored


def test_eval_does_not_generate_scenes(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "run"
    shutil.copytree(run, other)
    config = yaml.safe_load((other / "config.yaml").read_text())
    config["data"] |= {"source": "scenes", "root": str(tmp_path / "nowhere")}
    (other / "config.yaml").write_text(yaml.safe_dump(config))
    assert_refused(["eval", str(other)], "set its folder with --data.root", capsys)
    assert not (tmp_path / "nowhere").exists()


def test_validation_may_lack_categories_or_be_missing(scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    shutil.copytree(scenes, other)
    path = other / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    gone = content["categories"].pop()["id"]
    content["annotations"] = [a for a in content["annotations"] if a["category_id"] != gone]
    path.write_text(json.dumps(content))
    recipe = write_recipe(tmp_path / "small.yaml", other, optim={"epochs": 1})
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / "run")]) == 0
    assert len(load_detector(str(tmp_path / "run")).categories) == len(content["categories"]) + 1
    content["categories"][0]["name"] = "unicorn"
    path.write_text(json.dumps(content))
    args = ["train", str(recipe), "--run.out", str(tmp_path / "heart")]
    assert_refused(args, "has categories that instances_train2017.json does not have, for example 'unicorn' with id 1", capsys)
    path.unlink()
    assert tailprop_cli.main([*args, "--data.validate-on-train", "--data.limit", "2"]) == 0
    assert {e["image_id"] for e in json.loads((tmp_path / "heart" / "coco_results.json").read_text())} == {1, 2}


def test_predict_on_long_thin_images(run: Path, tmp_path: Path) -> None:
    for width, height in ((200, 1), (400, 2), (2, 900)):
        Image.new("RGB", (width, height), "gray").save(tmp_path / f"{width}.png")
    args = ["predict", str(run), *(str(tmp_path / f"{width}.png") for width in (200, 400, 2)), "--score", "0"]
    assert tailprop_cli.main([*args, "--out", str(tmp_path / "out"), "--threads", "1"]) == 0
    assert len(list((tmp_path / "out").glob("*.jpg"))) == 3


def test_brackets_in_names_are_not_markup(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "odd.safetensors"
    with safe_open(run / "model.safetensors", "pt") as file:
        notes = {name: value for name, value in file.metadata().items() if name != "sha256"}
    names = [f"[/b]{name}" for name in notes["classes"].split("\n")]
    save_file(load_file(run / "model.safetensors"), weights, notes | {"classes": "\n".join(names)})
    Image.new("RGB", (64, 64), "gray").save(tmp_path / "[b]a.png")
    args = ["predict", str(weights), str(tmp_path / "[b]a.png"), "--score", "0", "--out", str(tmp_path / "[b]out")]
    assert tailprop_cli.main(args) == 0
    said = "".join(capsys.readouterr().out.split())
    assert "[b]" in said
    assert "[/b]" in said
    assert said.endswith("[b]out")


def test_masks_are_computed_above_the_threshold_only(
    run: Path, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pasted: list[int] = []

    def watched(masks: torch.Tensor, *args: Any) -> torch.Tensor:
        pasted.append(len(masks))
        return paste_masks_in_image(masks, *args)

    monkeypatch.setattr(detect_model, "paste_masks_in_image", watched)

    def found_with(score: float) -> list[tuple[float, str]]:
        args = ["predict", str(run), image, "--score", str(score), "--out", str(tmp_path / "out"), "--overwrite"]
        assert tailprop_cli.main(args) == 0
        content = json.loads((tmp_path / "out" / "detections.json").read_text())
        return [(a["score"], a["segmentation"]["counts"]) for a in content["annotations"]]

    image = str(next((scenes / "val2017").iterdir()))
    everything = found_with(0.0)
    assert sum(pasted) == len(everything) > 0
    middle = everything[len(everything) // 2][0]
    assert found_with(middle) == [entry for entry in everything if entry[0] >= middle]  # including that one
    pasted.clear()
    assert found_with(1.0) == []
    assert load_detector(str(run)).predict(image, score=1.0).masks.shape == (0, 64, 64)
    assert sum(pasted) == 0


def test_eval_of_some_categories_writes_only_those(run: Path, scenes: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(scenes, root)
    path = root / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    content["categories"] = content["categories"][:2]
    content["annotations"] = [a for a in content["annotations"] if a["category_id"] <= 2]
    path.write_text(json.dumps(content))
    args = ["eval", str(run), "--data.root", str(root), "--results", str(tmp_path / "r.json")]
    assert tailprop_cli.main(args) == 0
    found = {entry["category_id"] for entry in json.loads((tmp_path / "r.json").read_text())}
    assert found
    assert found <= {1, 2}


def test_eval_on_the_training_split(scenes: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "r.yaml", scenes, optim={"epochs": 1}, data={"root": str(scenes), "limit": 3})
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / "run")]) == 0
    assert tailprop_cli.main(["eval", str(tmp_path / "run"), "--split", "train", "--out", str(tmp_path / "n.json")]) == 0
    assert json.loads((tmp_path / "n.json").read_text())["count"] == 3


def test_resuming_a_finished_run_keeps_its_figures(
    run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(run, out)
    detections = [entry | {"score": 0.9} for entry in json.loads((out / "coco_results.json").read_text())]
    (out / "coco_results.json").write_text(json.dumps(detections))  # with scores high enough to be drawn
    empty = (run / "predictions.jpg").read_bytes()
    recipe = write_recipe(tmp_path / "small.yaml", scenes)
    command = ["train", str(recipe), "--run.out", str(out), "--run.resume"]
    assert tailprop_cli.main(command) == 0
    assert (out / "predictions.jpg").read_bytes() == empty
    assert "coco_results.json is corrupt: predictions.jpg is not drawn again" in capsys.readouterr().err
    (out / "coco_results.json.sha256").unlink()  # as in runs of earlier versions
    assert tailprop_cli.main(command) == 0
    assert (out / "predictions.jpg").read_bytes() != empty


def test_eval_stops_at_broken_files_before_it_starts(
    run: Path, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    shutil.copytree(scenes, root)
    next((root / "val2017").iterdir()).unlink()
    monkeypatch.setattr(eval_detect, "detect_all", None)
    assert tailprop_cli.main(["eval", str(run), "--data.root", str(root)]) == 2
    assert "the image is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["predict", "RUN", "P", "--short-px", "0"], "short_px must be at least 32, got 0"),
        (["predict", "RUN", "P", "--short-px", "-5"], "short_px must be at least 32, got -5"),
        (["predict", "RUN", "P", "--out", "FOLDER"], "detections.json exists; choose another --out"),
        (["eval", "RUN", "--short-px", "3"], "short_px must be at least 32, got 3"),
        (["eval", "RUN", "--long-px", "40"], "long_px must be at least 64, got 40"),
        (["eval", "RUN", "--results", "FOLDER"], "is a folder; name a file"),
        (["eval", "RUN", "--out", "FOLDER"], "is a folder; name a file"),
        (["eval", "RUN", "--split", "train", "--data.val-json", "x.json"], "leave out --split train"),
    ],
)
def test_user_errors_raise_before_the_work(
    args: list[str], message: str, run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"RUN": run, "P": next((scenes / "val2017").iterdir()), "FOLDER": tmp_path}
    (tmp_path / "detections.json").write_text("{}")  # from an earlier prediction
    assert tailprop_cli.main([str(places.get(arg, arg)) for arg in args]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_weights_without_run_folder(run: Path, scenes: Path, tmp_path: Path) -> None:
    shutil.copy(run / "model.safetensors", tmp_path / "mine.safetensors")
    for name, where in (("run", run), ("mine", tmp_path / "mine.safetensors")):
        args = ["predict", str(where), str(scenes / "val2017"), "--score", "0", "--out", str(tmp_path / name)]
        assert tailprop_cli.main(args) == 0
    assert (tmp_path / "mine" / "detections.json").read_text() == (tmp_path / "run" / "detections.json").read_text()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("polygon", "annotation 1: its polygon is invalid"),
        ("category", "annotation 1: its category 99 is not among"),
        ("missing", "the image is missing"),
        ("unreadable", "not an image"),
    ],
)
def test_broken_files_stop_a_run_or_are_skipped(
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


def test_images_without_objects(scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        assert ("skipped 4 of 8 training images without objects" in capsys.readouterr().out) == said
