"""Restoration from recipe to restored image."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tailprop_cli
from tailprop.data.raster import read_pixels
from tailprop.engine.checkpoint import read_state_dict
from tests.helpers.restoring import photograph, write_images, write_recipe
from tests.helpers.runs import fork, losses


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, next to its images and its recipe."""
    here = tmp_path_factory.mktemp("restore")
    recipe = write_recipe(here / "r.yaml", write_images(here / "train"), write_images(here / "test", count=5, side=33))
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(here / "run")]) == 0
    return here


def test_run(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in (trained / "run/metrics.jsonl").read_text().splitlines()]
    epochs = [row for row in rows if row["kind"] == "epoch"]
    assert [set(row) >= {"psnr", "ssim"} for row in epochs] == [True, True]
    assert 15 < epochs[-1]["psnr"] < 40
    assert (trained / "run/learning.png").is_file()
    assert (trained / "run/restored.png").is_file()
    assert (
        tailprop_cli.main(["eval", str(trained / "run"), "--out", str(trained / "s.json"), "--images", str(trained / "p")]) == 0
    )
    said = capsys.readouterr().out
    scores = json.loads((trained / "s.json").read_text())
    assert scores["mean"]["psnr"] == pytest.approx(max(row["psnr"] for row in epochs), abs=1e-4)
    assert scores["mean"]["degraded_psnr"] == pytest.approx(24.61, abs=0.3)
    assert "mean of 5" in said
    assert len(list((trained / "p").glob("*.png"))) == 5


def test_killed_run_resumes_to_the_same_weights(trained: Path, tmp_path: Path) -> None:
    recipe = str(trained / "r.yaml")
    assert (
        tailprop_cli.main(["train", recipe, "--run.out", str(tmp_path / "a"), "--optim.epochs", "2", "--run.eval-every", "2"])
        == 0
    )
    # stopped in the middle of the second epoch: the last checkpoint is that of step 6
    full = losses(tmp_path / "a")
    from tailprop.engine import trainer as engine

    class Stop(Exception):  # noqa: N818
        pass

    step = engine.Trainer._step

    def limited(self: engine.Trainer, batches: list[object]) -> None:
        if self.loop.global_step == 7:
            raise Stop
        step(self, batches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.Trainer, "_step", limited)
        with pytest.raises(Stop):
            tailprop_cli.main(["train", recipe, "--run.out", str(tmp_path / "b"), "--run.eval-every", "2"])
    assert tailprop_cli.main(["train", recipe, "--run.out", str(tmp_path / "b"), "--run.eval-every", "2", "--run.resume"]) == 0
    assert losses(tmp_path / "b") == full
    a, b = (read_state_dict(tmp_path / name / "model.safetensors") for name in ("a", "b"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_two_processes_have_the_scores_of_one(trained: Path) -> None:
    for processes in (1, 2):
        out = fork(["eval", str(trained / "run"), "--out", str(trained / f"{processes}.json")], processes)
        assert out.returncode == 0, out.stderr
    one, two = (json.loads((trained / f"{n}.json").read_text()) for n in (1, 2))
    assert [row["name"] for row in two["images"]] == [f"{i}.png" for i in range(5)]
    for name, value in one["mean"].items():
        assert two["mean"][name] == pytest.approx(value, abs=1e-6)


def test_eval_draws_each_image_and_overwrites_none(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = write_images(tmp_path / "test", count=2, side=33)
    write_images(images / "sub", count=1, side=33)
    before = (images / "0.png").read_bytes()
    command = ["eval", str(trained / "run"), "--data.test", str(images), "--threads", "1"]
    assert tailprop_cli.main([*command, "--images", str(images)]) == 2
    assert "would be overwritten" in capsys.readouterr().err
    assert (images / "0.png").read_bytes() == before
    out = tmp_path / "drawn"
    args = [*command, "--images", str(out), "--out", str(tmp_path / "n.json"), "--tile-px", "16"]
    assert tailprop_cli.main(args) == 0
    assert "tiles of 16 px sharing 4, smaller images whole" in capsys.readouterr().out
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*.png")) == ["0.png", "1.png", "sub/0.png"]
    assert [row["name"] for row in json.loads((tmp_path / "n.json").read_text())["images"]] == ["0.png", "1.png", "sub/0.png"]
    assert tailprop_cli.main(args) == 2
    assert "give --overwrite" in capsys.readouterr().err
    assert tailprop_cli.main([*args, "--overwrite"]) == 0
    assert tailprop_cli.main([*command, "--out", str(tmp_path)]) == 2
    assert "is a folder; name a file" in capsys.readouterr().err
    assert tailprop_cli.main([*command, "--threads", "-3"]) == 2
    assert "threads must be at least 0" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["text", "small"])
def test_broken_test_images(damage: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They stop training and evaluation before the first image, or are skipped."""
    images = write_images(tmp_path / "test", count=1, side=33)
    if damage == "text":
        (images / "x.png").write_text("no image")
    else:
        Image.new("L", (40, 8)).save(images / "x.png")
    reason = "x.png: not an image" if damage == "text" else "x.png: SSIM needs at least 11x11 px, the image has 40x8"
    recipe = str(write_recipe(tmp_path / "r.yaml", trained / "train", images, optim={"epochs": 1}))
    assert tailprop_cli.main(["train", recipe, "--run.out", str(tmp_path / "a")]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "a" / "last.pt").exists()
    command = ["eval", str(trained / "run"), "--data.test", str(images), "--threads", "1"]
    assert tailprop_cli.main(command) == 2
    assert reason in capsys.readouterr().err
    assert tailprop_cli.main([*command, "--data.on-broken", "skip"]) == 0
    assert "mean of 1" in capsys.readouterr().out
    (images / "0.png").unlink()
    assert tailprop_cli.main([*command, "--data.on-broken", "skip"]) == 2
    assert f"no image could be restored; the first of 1 broken images: {images}/{reason}" in capsys.readouterr().err


def test_colour_from_training_to_prediction(tmp_path: Path) -> None:
    images = [write_images(tmp_path / name, side=33, mode="RGB") for name in ("train", "test")]
    recipe = write_recipe(tmp_path / "r.yaml", *images, model={"in_chans": 3}, optim={"epochs": 1})
    run = tmp_path / "run"
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run)]) == 0
    assert tailprop_cli.main(["eval", str(run), "--out", str(tmp_path / "n.json"), "--threads", "1"]) == 0
    assert json.loads((tmp_path / "n.json").read_text())["mean"]["degraded_psnr"] == pytest.approx(24.61, abs=0.3)
    Image.fromarray(photograph(20)).save(tmp_path / "colour.png")
    Image.fromarray(photograph(20)).convert("L").save(tmp_path / "gray.png")
    args = [str(tmp_path / "colour.png"), str(tmp_path / "gray.png"), "--out", str(tmp_path / "out"), "--threads", "1"]
    assert tailprop_cli.main(["predict", str(run), *args]) == 0
    assert read_pixels(tmp_path / "out/colour.png").shape == (20, 20, 3)
    assert read_pixels(tmp_path / "out/gray.png").shape == (20, 20, 1)


def test_jpeg_with_psnr_b(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(
        tmp_path / "r.yaml",
        trained / "train",
        trained / "test",
        data={"degradation": "jpeg", "quality": 20},
        optim={"epochs": 1},
    )
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / "run")]) == 0
    assert "PSNR-B" in capsys.readouterr().out
    assert (
        tailprop_cli.main(["eval", str(tmp_path / "run"), "--data.quality", "10", "--tile-px", "16", "--overlap-px", "8"]) == 0
    )
    assert "JPEG, quality 10" in capsys.readouterr().out


def predict(trained: Path, *args: object) -> int:
    return tailprop_cli.main(["predict", str(trained / "run"), *map(str, args), "--threads", "1"])


def test_weights_without_run_folder(trained: Path, tmp_path: Path) -> None:
    shutil.copy(trained / "run" / "model.safetensors", tmp_path / "mine.safetensors")
    for name, where in (("run", trained / "run"), ("mine", tmp_path / "mine.safetensors")):
        args = ["predict", str(where), str(trained / "test"), "--out", str(tmp_path / name), "--threads", "1"]
        assert tailprop_cli.main(args) == 0
    restored = sorted((tmp_path / "run").iterdir())
    assert len(restored) == 5
    assert all(path.read_bytes() == (tmp_path / "mine" / path.name).read_bytes() for path in restored)


def test_predict_keeps_bit_depth_channels_and_alpha(trained: Path, tmp_path: Path) -> None:
    images = tmp_path / "in"
    images.mkdir()
    photo = Image.fromarray(photograph(30))
    alpha = Image.linear_gradient("L").resize(photo.size)
    for mode in ("L", "RGB", "P", "LA", "RGBA"):
        image = photo.convert(mode)
        if mode in ("LA", "RGBA"):
            image.putalpha(alpha)
        image.save(images / f"{mode}.png")
    Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 257 + 77).save(images / "deep.png")
    photo.crop((0, 0, 1, 1)).save(images / "dot.png")
    (images / "sub").mkdir()
    photo.save(images / "sub/RGB.png")
    assert predict(trained, images, "--out", tmp_path / "out") == 0
    shapes = {p.relative_to(tmp_path / "out").as_posix(): read_pixels(p) for p in (tmp_path / "out").rglob("*.png")}
    assert {name: (a.shape, a.dtype.name) for name, a in shapes.items()} == {
        "L.png": ((30, 30, 1), "uint8"),
        "RGB.png": ((30, 30, 3), "uint8"),
        "P.png": ((30, 30, 3), "uint8"),
        "LA.png": ((30, 30, 2), "uint8"),
        "RGBA.png": ((30, 30, 4), "uint8"),
        "deep.png": ((30, 30, 1), "uint16"),
        "dot.png": ((1, 1, 3), "uint8"),
        "sub/RGB.png": ((30, 30, 3), "uint8"),
    }
    np.testing.assert_array_equal(shapes["RGBA.png"][..., 3], np.asarray(alpha))
    assert len(np.unique(shapes["deep.png"] % 257)) > 20  # really more than 8 bits
    assert np.abs(shapes["RGB.png"].astype(int) - photograph(30)).mean() < 40


def test_predict_in_tiles(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(photograph(90)).save(tmp_path / "a.png")
    options = ("--whole-px", 0, "--tile-px", 48, "--overlap-px", 16)
    assert predict(trained, tmp_path / "a.png", "--out", tmp_path / "tiled", *options) == 0
    assert "in tiles of 48 px" in capsys.readouterr().out
    assert predict(trained, tmp_path / "a.png", "--out", tmp_path / "whole") == 0
    assert "whole)" in capsys.readouterr().out
    tiled, whole = (read_pixels(tmp_path / name / "a.png").astype(int) for name in ("tiled", "whole"))
    assert np.abs(tiled - whole).max() <= 8


def test_unreadable_images_are_named(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.png").write_text("hello")
    assert predict(trained, tmp_path / "text.png", "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err.splitlines() == [f"tailprop: {tmp_path}/text.png: not an image"]
    Image.fromarray(photograph(20)).save(tmp_path / "good.png")
    assert predict(trained, tmp_path / "text.png", tmp_path / "good.png", "--out", tmp_path / "out") == 0
    assert "skipped" in capsys.readouterr().err
    assert predict(trained, tmp_path / "good.png", "--out", tmp_path) == 2
    assert "would be overwritten" in capsys.readouterr().err
    assert predict(trained, tmp_path / "good.png", "--overlap-px", 400) == 2
    assert "overlap_px may be at most half of tile_px" in capsys.readouterr().err


def test_broken_training_image(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_images(tmp_path / "train")
    (folder / "x.png").write_text("no image")
    recipe = str(write_recipe(tmp_path / "r.yaml", folder, trained / "test", optim={"epochs": 1}))
    assert tailprop_cli.main(["train", recipe, "--run.out", str(tmp_path / "a")]) == 2
    assert "not an image; fix or remove it" in capsys.readouterr().err
    assert tailprop_cli.main(["train", recipe, "--run.out", str(tmp_path / "b"), "--data.on-broken", "skip"]) == 0
    assert "skipped" in capsys.readouterr().err


def test_restorer_study(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tailprop.studies import restorers

    names = ("tailprop_ir_light", "identity_ir_light")
    monkeypatch.setattr(restorers, "NETWORKS", names)
    command = ["restorers", "--train", str(trained / "train"), "--test", str(trained / "test"), "--minutes", "0.0001"]
    command += ["--recipe", str(trained / "r.yaml"), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "a.csv")]
    assert tailprop_cli.main([*command, "--only", names[0]]) == 0
    assert tailprop_cli.main([*command, "--only", *names]) == 0  # the first is finished and kept
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[0].startswith("network,recipe,minutes,parameters,steps")
    assert {line.split(",")[0] for line in lines[1:]} == set(names)
    assert (tmp_path / "a.png").is_file()
