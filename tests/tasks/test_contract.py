"""Contract tests, written once and run for every task."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import tailprop
import tailprop_cli
from tailprop.engine.run_settings import read_config, read_metadata
from tailprop.engine.settings import build, comparable, portable, to_dict
from tailprop.engine.task import TaskSpec
from tailprop.tasks import TASKS, find_spec
from tests.helpers.runs import assert_refused, assert_same_run, last_row, stop_after
from tests.helpers.tiny_tasks import COPIES, write_tiny


@pytest.fixture(scope="module", params=TASKS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run of a task, trained in its own working directory with relative paths; tests must not modify it."""
    home = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        recipe = write_tiny(request.param)
        assert tailprop_cli.main(["train", str(recipe), "--run.out", "run"]) == 0
        yield home / "run"


@pytest.fixture
def spec(run: Path) -> TaskSpec:
    return find_spec(read_config(run)["task"])


@pytest.fixture
def image(run: Path) -> Path:
    """One of the images the run was evaluated on."""
    return sorted(path for path in (run.parent / "data").rglob("*") if path.suffix in (".jpg", ".png"))[-1]


@pytest.mark.parametrize("name", TASKS)
def test_every_part_of_a_spec_exists(name: str) -> None:
    spec = find_spec(name)
    assert spec.name == name
    config = spec.config_type()()
    assert config.task == name
    assert callable(spec.part(spec.task))
    assert callable(spec.part(spec.load))
    for command in filter(None, (spec.evaluate, spec.predict, spec.bench)):
        assert spec.part(command).__doc__
        assert callable(spec.module(command).run)
    assert all(callable(spec.part(part)) for part in (spec.export, spec.hub) if part)
    assert spec.exported is None or callable(spec.module(spec.exported).run)


@pytest.mark.parametrize("name", TASKS)
def test_settings_round_trip_and_portable_settings_have_no_paths(name: str) -> None:
    kind = find_spec(name).config_type()
    config = kind()
    assert build(kind, to_dict(config)) == config
    carried = build(kind, portable(config))
    assert comparable(carried) == comparable(config)
    assert "run" not in portable(config)
    for section in (portable(config)["data"], portable(config)["model"]):
        local = {"root", "train", "test", "train_degraded", "test_degraded", "colors", "cache_dir", "workers", "init"}
        assert not local & section.keys()


def test_run_folder_has_the_files_of_the_spec(run: Path, spec: TaskSpec) -> None:
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "manifest.json", "metrics.jsonl", "history.csv", "last.pt", "best.pt", "model.safetensors"} <= names
    legacy = {"pictures.jpg"}
    assert set(spec.artifacts) - legacy <= names
    assert spec.metric in last_row(run)
    assert 0 < last_row(run)["val_loss"] < 100  # of the images that are evaluated
    assert list(spec.metrics).index("val_loss") > 0  # no score
    manifest = json.loads((run / "manifest.json").read_text())
    assert {"examples", "split_hash", "parameters", "macs", "config_hash", "commit"} <= manifest.keys()
    assert read_metadata(run / "model.safetensors")["architecture"] == read_config(run)["model"]["name"]


def test_resuming_from_another_working_directory_gives_the_same_weights(
    run: Path, spec: TaskSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped and resumed by its folder from another working directory: every path of every task still resolves."""
    with monkeypatch.context() as patch:
        patch.chdir(run.parent)
        stop_after(3, ["train", f"{spec.name}.yaml", "--run.out", "stopped"], monkeypatch)
    monkeypatch.chdir(tmp_path)
    stopped = run.with_name("stopped")
    assert tailprop_cli.main(["train", str(stopped), "--run.resume"]) == 0
    assert_same_run(stopped, run)
    shutil.rmtree(stopped)


def test_repeated_command_gives_the_same_run(run: Path, spec: TaskSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    before = (run / "last.pt").read_bytes()
    assert tailprop_cli.main(["train", f"{spec.name}.yaml", "--run.out", "run", "--run.resume", "--data.workers", "1"]) == 0
    assert (run / "last.pt").read_bytes() == before


def test_eval_matches_the_metrics_of_training(
    run: Path, spec: TaskSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tailprop_cli.main(["eval", str(run), "--out", "e.json"]) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    best = max(row[spec.metric] for row in rows if row["kind"] == "epoch")
    measured = json.loads(Path("e.json").read_text())
    value = measured["mean"][spec.metric] if "mean" in measured else measured[spec.metric]
    assert value == pytest.approx(best, abs=1e-4)
    assert measured["training_images"] == 0


def test_eval_reports_training_images(
    run: Path, spec: TaskSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run.parent / "data", "copy")
    other, count = COPIES[spec.name]
    assert tailprop_cli.main(["eval", str(run), "--out", "e.json", *other]) == 0
    assert json.loads(Path("e.json").read_text())["training_images"] == count
    assert f"{count} of the {count} images are training images of this run" in capsys.readouterr().out


def arrays(answer: Any) -> list[np.ndarray]:
    """The arrays in a prediction of any task."""
    values = [answer] if isinstance(answer, np.ndarray) else [v for v in vars(answer).values() if isinstance(v, torch.Tensor)]
    assert values
    return [np.asarray(v) for v in values]


def test_load_predicts_for_every_kind_of_image_input(run: Path, image: Path, tmp_path: Path) -> None:
    shutil.copy(run / "model.safetensors", tmp_path / "elsewhere.safetensors")
    loaded, far = tailprop.load(run), tailprop.load(tmp_path / "elsewhere.safetensors")
    assert not loaded.model.training
    assert far.names == loaded.names
    assert comparable(far.settings)["model"] == comparable(loaded.settings)["model"]
    with Image.open(image) as file:
        pixels = np.array(file)
    channels_first = torch.from_numpy(pixels if pixels.ndim == 3 else pixels[..., None]).permute(2, 0, 1)
    expected = arrays(loaded.predict(image))
    for given in (str(image), Image.fromarray(pixels), pixels, channels_first):
        for found, wanted in zip(arrays(loaded.predict(given)), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    many = loaded.predict([image, pixels])
    assert isinstance(many, list)
    assert len(many) == 2
    for answer in (*many, far.predict(image)):
        for found, wanted in zip(arrays(answer), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_load_errors_name_the_fix(run: Path, tmp_path: Path) -> None:
    loaded = tailprop.load(run)
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(ValueError, match=r"text\.png: "):
        loaded.predict(tmp_path / "text.png")
    with pytest.raises(ValueError, match="image"):
        loaded.predict(torch.zeros(2, 3, 4, 5, 6))
    with pytest.raises(ValueError, match=r"no checkpoint at|contains no model"):
        tailprop.load(tmp_path / "nowhere")


def test_predict_writes_what_load_predicts(
    run: Path, spec: TaskSpec, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = tailprop.load(run)
    command = ["predict", str(run), str(image), "--out"]
    if spec.name == "classify":
        assert tailprop_cli.main([*command, "p.json"]) == 0
        (row,) = json.loads(Path("p.json").read_text())
        assert row["predictions"] == [vars(score) for score in loaded.predict(image).top(5)]
    elif spec.name == "detect":
        assert tailprop_cli.main([*command, "out", "--score", "0"]) == 0
        found = json.loads(Path("out/detections.json").read_text())["annotations"]
        assert [entry["score"] for entry in found] == pytest.approx(loaded.predict(image, score=0.0).scores.tolist())
        assert found
    else:
        assert tailprop_cli.main([*command, "out"]) == 0
        written = np.asarray(Image.open(next(Path("out").glob("*.png"))))
        answer = loaded.predict(image)
        if spec.name == "restore":
            answer = answer[..., 0]
        expected = answer.labels.numpy() + loaded.first_label if spec.name == "segment" else answer
        np.testing.assert_array_equal(written, expected)


def test_weights_of_another_shape_raise_in_one_line(
    run: Path, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "run"
    shutil.copytree(run, broken)
    weights = load_file(broken / "model.safetensors")
    (broken / "model.safetensors").unlink()
    (broken / "last.pt").unlink()
    weights.pop(next(iter(weights)))
    torch.save({"model": weights}, broken / "best.pt")
    shutil.copy(run / "model.safetensors", tmp_path / "model.safetensors")
    for command in (["eval", str(broken)], ["predict", str(broken), str(image)]):
        assert tailprop_cli.main(command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "does not fit" in error or "was not finished" in error


@pytest.mark.parametrize("name", TASKS)
def test_unknown_setting_suggests_the_closest(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"task: {name}\noptim: {{epochz: 3}}\n")
    assert_refused(["train", str(recipe)], "unknown setting optim.epochz; did you mean optim.epochs?", capsys)


@pytest.mark.parametrize("task", ["[1]", "clasify", "7"])
def test_unknown_task(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.yaml").write_text(f"task: {task}\n")
    assert_refused(["train", str(tmp_path / "r.yaml")], "unknown task", capsys)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "coco_maskrcnn_tiny_1x"], "--data.root is missing"),
        (["train", "coco_maskrcnn_tiny_1x", "--data.root", "nowhere"], "no annotation file nowhere/annotations"),
        (["train", "shapes_maskrcnn", "--detector.anchor-px", "8", "16"], "detector.anchor_px needs 5 sides"),
        (["train", "shapes_maskrcnn", "--model.name", "resnet_zero"], "timm has no model 'resnet_zero'"),
        (["train", "shapes_maskrcnn", "--data.long-px", "64"], "data.long_px must be at least 128"),
        (["bench", "detect", "--models", "tailprop_huge"], "timm has no model 'tailprop_huge'"),
        (["train", "ade20k_upernet_tiny"], "--data.root is missing"),
        (["train", "ade20k_upernet_tiny", "--data.root", "nowhere"], "no folder nowhere"),
        (["train", "ade20k_upernet_tiny", "--data.root", "."], "no folder images/training with the images"),
        (["train", "shapes_upernet", "--optim.batch-size", "1"], "batch norm needs two images per batch"),
        (["train", "shapes_upernet", "--inference.stride-px", "600"], "leaves gaps between windows of 512 px"),
        (["train", "shapes_upernet", "--model.name", "resnet_zero"], "timm has no model 'resnet_zero'"),
        (["bench", "segment", "--models", "tailprop_huge"], "timm has no model 'tailprop_huge'"),
    ],
)
def test_user_errors_are_one_line(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(args, message, capsys)
