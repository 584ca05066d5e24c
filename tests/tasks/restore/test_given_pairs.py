"""Blind training over ranges of noise and quality, gray images in colour networks, and pairs of given images."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tailprop
import tailprop_cli
from tailprop.data.raster import full_luma, read_pixels, write_pixels
from tailprop.data.samplers import SampleKey
from tailprop.tasks.restore.bicubic import crop_to_multiple, downscale
from tailprop.tasks.restore.config import RestoreDataConfig
from tailprop.tasks.restore.data import CropDataset, Pair
from tailprop.tasks.restore.degrade import add_test_noise, compress, to_unit
from tests.helpers.restoring import photograph, write_images, write_recipe
from tests.helpers.runs import assert_refused, last_row


def pairs_of(folder: Path, channels: int, count: int = 60, **data: Any) -> list[Pair]:
    crops = CropDataset(sorted(folder.iterdir()), RestoreDataConfig(crop_px=32, **data), channels)
    found = [crops[SampleKey(0, seed)][0] for seed in range(count)]
    assert all(isinstance(pair, Pair) for pair in found)
    return [pair for pair in found if isinstance(pair, Pair)]


def test_noise_levels_cover_their_range(tmp_path: Path) -> None:
    """The standard deviation of a crop of 1024 pixels is known to 2 %."""
    pairs = pairs_of(write_images(tmp_path / "a", count=1), 1, sigma_range=(5.0, 50.0), sigma=25.0)
    levels = sorted(255 * float((pair.degraded - pair.clean).std()) for pair in pairs)
    assert 4.5 < levels[0] < 8
    assert 46 < levels[-1] < 54
    assert np.mean(levels) == pytest.approx(27.5, abs=5)
    again = pairs_of(tmp_path / "a", 1, sigma_range=(5.0, 50.0))
    assert all(torch.equal(a.degraded, b.degraded) for a, b in zip(pairs, again, strict=True))  # by the seed alone


def test_qualities_cover_their_range(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "a", count=1, side=90)
    qualities = pairs_of(folder, 1, degradation="jpeg", quality_range=(10, 90))
    errors = sorted(float((pair.degraded - pair.clean).square().mean()) for pair in qualities)
    least, most = (
        float(np.mean([(p.degraded - p.clean).square().mean() for p in pairs_of(folder, 1, degradation="jpeg", quality=q)]))
        for q in (90, 10)
    )
    assert errors[0] < 2 * least
    assert errors[-1] > most / 2
    assert errors[0] < errors[len(errors) // 2] < errors[-1]


@pytest.mark.parametrize("degradation", ["noise", "jpeg", "downscale"])
def test_gray_crops_of_a_colour_network_have_equal_channels(degradation: Any, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "a", count=1, mode="RGB", side=48)
    data = dict(degradation=degradation, gray_share=0.5, scale=2 if degradation == "downscale" else 1)
    gray = [
        all(torch.equal(image[0], image[k]) for image in (pair.degraded, pair.clean) for k in (1, 2))
        for pair in pairs_of(folder, 3, **data)
    ]
    assert 15 < sum(gray) < 45
    assert all(pair.clean.shape == (1, 32, 32) for pair in pairs_of(folder, 1, count=4, **data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(sigma_range=(50.0, 5.0)), r"data.sigma_range must be a minimum and a maximum from 0 to 255, got \(50.0, 5.0\)"),
        (dict(sigma_range=(5.0, 500.0)), "data.sigma_range must be"),
        (dict(degradation="jpeg", quality_range=(0, 90)), "data.quality_range must be a minimum and a maximum from 1 to 100"),
        (dict(degradation="jpeg", sigma_range=(5.0, 50.0)), "data.sigma_range is for data.degradation noise, not jpeg"),
        (dict(quality_range=(10, 90)), "data.quality_range is for data.degradation jpeg, not noise"),
        (dict(gray_share=1.5), "data.gray_share"),
        (dict(degradation="pairs", scale=5), "data.scale must be 1, 2, 3, 4 for data.degradation pairs, got 5"),
    ],
)
def test_wrong_ranges_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RestoreDataConfig(**change).check()


@pytest.mark.parametrize(
    ("degradation", "blind", "levels"),
    [("noise", ["--data.sigma-range", "5", "50"], ["15", "50"]), ("jpeg", ["--data.quality-range", "10", "90"], ["10", "40"])],
)
def test_blind_colour_network_restores_gray_and_colour(
    degradation: str, blind: list[str], levels: list[str], tmp_path: Path
) -> None:
    """Gray test images are degraded in gray; the network sees three equal channels, and their mean is scored."""
    train, gray = write_images(tmp_path / "train", mode="RGB"), write_images(tmp_path / "gray", count=2, side=33)
    recipe = write_recipe(tmp_path / "r.yaml", train, write_images(tmp_path / "test", count=2, side=33, mode="RGB"))
    run, colour = tmp_path / "run", ["--model.in-chans", "3", "--data.gray-share", "0.3"]
    command = ["train", str(recipe), "--run.out", str(run), *colour, "--data.degradation", degradation, *blind]
    assert tailprop_cli.main(command) == 0
    name, inputs = {"noise": "sigma", "jpeg": "quality"}[degradation], []
    for folder, level in (("test", levels[0]), ("gray", levels[0]), ("gray", levels[1])):
        out = tmp_path / "e.json"
        options = ["--data.test", str(tmp_path / folder), f"--data.{name}", level, "--out", str(out)]
        assert tailprop_cli.main(["eval", str(run), *options]) == 0
        inputs.append(json.loads(out.read_text())["mean"]["degraded_psnr"])
    for level, found in zip(levels, inputs[1:], strict=True):
        expected = []
        for path in sorted(gray.iterdir()):
            clean = read_pixels(path)
            degraded = add_test_noise(to_unit(clean), float(level)) if name == "sigma" else to_unit(compress(clean, int(level)))
            expected.append(-10 * np.log10(np.mean((degraded - to_unit(clean)).astype(np.float64) ** 2)))
        assert found == pytest.approx(np.mean(expected), abs=1e-4)
    restored = tailprop.load(run).predict(gray / "0.png")
    assert restored.shape == read_pixels(gray / "0.png").shape


# Pairs


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Folders clean and dark, whose images are half as bright, for training and test; one in a subfolder."""
    for split, count in (("train", 3), ("test", 2)):
        clean = write_images(tmp_path / split / "clean", count=count, side=40, mode="RGB")
        write_images(clean / "sub", count=1, side=44, mode="RGB")
        for path in sorted(clean.rglob("*.png")):
            dark = (tmp_path / split / "dark" / path.relative_to(clean)).with_suffix(".bmp")
            dark.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(read_pixels(path) // 2).save(dark)
    return tmp_path


def recipe_of(photos: Path, **data: Any) -> list[str]:
    settings = dict(train_degraded=[str(photos / "train/dark")], test_degraded=str(photos / "test/dark"))
    data = dict(degradation="pairs", crop_px=16, workers=0) | settings | data
    recipe = write_recipe(photos / "r.yaml", photos / "train/clean", photos / "test/clean", data=data, model=dict(in_chans=3))
    return ["train", str(recipe), "--run.out", str(photos / "run")]


def test_pairs_are_cut_and_turned_together(photos: Path) -> None:
    data = RestoreDataConfig(
        degradation="pairs", crop_px=24, train=(photos / "train/clean",), train_degraded=(photos / "train/dark",)
    )
    crops = CropDataset(data.list_train_images(), data, 3)
    seen = set()
    for index in range(4):
        for seed in range(8):
            (pair,) = crops[SampleKey(index, seed)]
            assert isinstance(pair, Pair)
            np.testing.assert_array_equal((255 * pair.degraded).round(), (255 * pair.clean).round() // 2)
            seen.add(float(pair.clean.sum()))
    assert len(seen) == 32


def test_pairs_from_recipe_to_image(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tailprop_cli.main(recipe_of(photos)) == 0
    run = photos / "run"
    assert tailprop_cli.main(["eval", str(run), "--out", str(photos / "s.json")]) == 0
    assert "pairs, whole images" in capsys.readouterr().out.replace("\n", " ")
    scores = json.loads((photos / "s.json").read_text())
    assert scores["mean"]["psnr"] == pytest.approx(last_row(run)["psnr"], abs=1e-4)
    assert len(scores["images"]) == 3
    clean = read_pixels(photos / "test/clean/0.png").astype(float)
    by_name = {row["name"]: row["degraded_psnr"] for row in scores["images"]}
    assert by_name["0.png"] == pytest.approx(10 * np.log10(255**2 / np.mean((clean - clean // 2) ** 2)), abs=1e-3)
    command = ["predict", str(run), str(photos / "test/dark"), "--out", str(photos / "out")]
    assert tailprop_cli.main(command) == 0
    assert len(list((photos / "out").rglob("*.png"))) == 3


def test_smaller_pairs_train_super_resolution(photos: Path) -> None:
    """DIV2K's names: 0801.png and 0801x2.png."""
    for split in ("train", "test"):
        shutil.rmtree(photos / split / "dark")
        for path in sorted((photos / split / "clean").rglob("*.png")):
            small = downscale(crop_to_multiple(read_pixels(path), 2), 2)
            target = photos / split / "dark" / path.relative_to(photos / split / "clean")
            write_pixels(target.with_name(f"{path.stem}x2.png"), small)
    given = recipe_of(photos, scale=2)
    assert tailprop_cli.main(given) == 0
    made = [*given[:-1], str(photos / "other"), "--data.degradation", "downscale"]
    assert tailprop_cli.main(made) == 0
    for name in ("psnr", "ssim", "val_loss"):  # the same pairs, made beforehand and on the fly
        assert last_row(photos / "run")[name] == pytest.approx(last_row(photos / "other")[name], rel=1e-5)
    assert tailprop.load(photos / "run").predict(photograph(20)).shape == (40, 40, 3)


def test_wrong_pairs_are_refused(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = recipe_of(photos)
    dark = photos / "test" / "dark"
    Image.new("RGB", (39, 40)).save(dark / "1.bmp")
    assert_refused(command, "1.bmp: it is 39x40, but the clean image is 41x40; pairs need the same size", capsys)
    assert_refused([*command, "--data.scale", "2"], "pairs need that size divided by data.scale 2", capsys)
    (dark / "1.bmp").write_text("no image")
    assert_refused(command, "1.bmp: not an image", capsys)
    (dark / "1.bmp").unlink()
    assert_refused(command, f"1.png has no degraded image 1 in {dark}", capsys)
    shutil.copy(dark / "0.bmp", dark / "0.dib")
    assert_refused(command, "have the same name; keep one of them", capsys)
    assert_refused(recipe_of(photos, test_degraded=None), "set it with --data.test-degraded", capsys)
    assert_refused(recipe_of(photos, test_degraded=str(photos / "no")), f"no folder {photos / 'no'} of degraded", capsys)
    assert_refused(recipe_of(photos, train_degraded=[]), "--data.train-degraded has 0", capsys)


def test_a_training_pair_of_unequal_sizes_is_broken(photos: Path) -> None:
    Image.new("RGB", (10, 40)).save(photos / "train/dark/0.bmp")
    data = RestoreDataConfig(
        degradation="pairs", crop_px=8, train=(photos / "train/clean",), train_degraded=(photos / "train/dark",)
    )
    *broken, other = CropDataset(data.list_train_images(), data, 3)[SampleKey(0, 0)]
    assert "0.bmp: it is 10x40, but the clean image is 40x40" in str(broken[0])
    assert isinstance(other, Pair)


def test_gray_pairs_are_luma(photos: Path) -> None:
    data = RestoreDataConfig(
        degradation="pairs", crop_px=40, train=(photos / "train/clean",), train_degraded=(photos / "train/dark",)
    )
    (pair,) = CropDataset(data.list_train_images(), data, 1)[SampleKey(0, 0)]
    assert isinstance(pair, Pair)
    luma = full_luma(read_pixels(photos / "train/clean/0.png"))
    assert float(255 * pair.clean.sum()) == pytest.approx(float(luma.sum()), rel=1e-6)
