"""`tailprop predict` on images of every kind, including broken ones."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tailprop.data.broken import Broken
from tailprop.data.images import read_image
from tailprop.tasks.classify import predict
from tailprop.tasks.classify.load import load_classifier
from tests.helpers.predicting import assert_seen_as, expected, make_run, noise, options, predict_json, probabilities, save
from tests.helpers.runs import assert_refused


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_run(tmp_path_factory.mktemp("run"))


# ---- kinds of images


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".tiff"])
def test_exif_orientation(checkpoint: str, tmp_path: Path, suffix: str) -> None:
    upright = noise(height=60, width=40)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    lying = upright.transpose(Image.Transpose.ROTATE_90)
    by_suffix: dict[str, dict[str, Any]] = {".jpg": dict(quality=100, subsampling=0), ".webp": dict(lossless=True)}
    lossless = by_suffix.get(suffix, {})
    as_tag: dict[str, Any] = dict(tiffinfo={0x0112: 6}) if suffix == ".tiff" else dict(exif=exif)
    path = save(lying, tmp_path / f"a{suffix}", **lossless, **as_tag)
    assert_seen_as(checkpoint, path, upright, atol=0.01 if suffix == ".jpg" else 1e-6)
    difference = expected(checkpoint, upright)[0] - expected(checkpoint, lying)[0]
    assert difference.abs().max() > 0.02  # without the rotation predictions would differ


def test_corrupt_exif_is_ignored(checkpoint: str, tmp_path: Path) -> None:
    path = save(noise(), tmp_path / "a.webp", lossless=True, exif=b"Exif\0\0MM\0q\0\0\0\x08")
    assert_seen_as(checkpoint, path, noise())


def gray16() -> np.ndarray:
    return np.asarray(noise(channels=1)).astype(np.uint16) * 257


@pytest.mark.parametrize("suffix", [".png", ".tiff", ".pgm", ".jp2"])
def test_16_bit_gray_is_scaled(checkpoint: str, tmp_path: Path, suffix: str) -> None:
    path = save(Image.fromarray(gray16()), tmp_path / f"a{suffix}")
    assert_seen_as(checkpoint, path, noise(channels=1).convert("RGB"))


def test_16_bits_round_to_the_nearest_of_8(tmp_path: Path) -> None:
    values = np.array([[0, 128, 129, 32896, 65406, 65407, 65535]], dtype=np.uint16)
    image = read_image(save(Image.fromarray(values), tmp_path / "a.png"), "L")
    assert np.asarray(image).tolist() == [[0, 0, 1, 128, 254, 255, 255]]


def test_palette_with_transparency(checkpoint: str, tmp_path: Path) -> None:
    colours = noise().quantize(16)
    path = save(colours, tmp_path / "a.png", transparency=bytes([0, 128, 255] + [255] * 13))
    with Image.open(path) as file:
        assert isinstance(file.info["transparency"], bytes)  # the kind that Pillow warns about
    assert isinstance(read_image(path, "RGB"), Image.Image)  # a warning, which is an error in tests, would make it Broken
    assert_seen_as(checkpoint, path, colours.convert("RGB"))
    gif = save(colours, tmp_path / "a.gif", transparency=3)
    assert_seen_as(checkpoint, gif, colours.convert("RGB"))


def test_cmyk_jpeg(checkpoint: str, tmp_path: Path) -> None:
    path = save(noise().convert("CMYK"), tmp_path / "a.jpg", quality=100, subsampling=0)
    assert_seen_as(checkpoint, path, noise(), atol=0.02)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "RGB"])
def test_modes(checkpoint: str, tmp_path: Path, mode: str) -> None:
    image = noise().convert(mode)
    assert_seen_as(checkpoint, save(image, tmp_path / "a.png"), image.convert("RGB"))


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (30000, 1), (33, 2)])
def test_odd_sizes(checkpoint: str, tmp_path: Path, size: tuple[int, int]) -> None:
    path = save(Image.new("RGB", size, (200, 30, 90)), tmp_path / "a.png")
    assert_seen_as(checkpoint, path, Image.new("RGB", (40, 40), (200, 30, 90)), atol=1e-4)


@pytest.mark.parametrize(("in_chans", "mode"), [(1, "L"), (4, "RGBA")])
def test_models_with_other_in_chans(tmp_path: Path, in_chans: int, mode: str) -> None:
    checkpoint = make_run(tmp_path, in_chans)
    assert_seen_as(checkpoint, save(noise(channels=4), tmp_path / "a.png"), noise(channels=4).convert(mode))
    assert_seen_as(checkpoint, save(Image.fromarray(gray16()), tmp_path / "b.png"), noise(channels=1).convert(mode))


def test_unsupported_in_chans(tmp_path: Path) -> None:
    checkpoint = make_run(tmp_path, in_chans=2)
    with pytest.raises(ValueError, match=r"tailprop_pico takes 2 channels \(model.in_chans\); images have 1, 3 or 4"):
        predict.run(options(checkpoint, save(noise(), tmp_path / "a.png")))


def test_pixels_with_unknown_white_level_raise(tmp_path: Path) -> None:
    floats = save(Image.fromarray(np.ones((4, 4), np.float32)), tmp_path / "a.tiff")
    wide = save(Image.fromarray(np.full((4, 4), 70_000, np.int32)), tmp_path / "b.tiff")
    for path, bits in ((floats, "floats"), (wide, "32 bits")):
        broken = read_image(path, "RGB")
        assert isinstance(broken, Broken)
        assert bits in broken.reason


# ---- broken images


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two good images, a text file, a truncated file, an empty file."""
    save(noise(0), tmp_path / "p" / "a.png")
    (tmp_path / "p" / "b.png").write_text("not an image at all\n")
    whole = save(noise(1), tmp_path / "p" / "c.png").read_bytes()
    (tmp_path / "p" / "d.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "p" / "e.jpg").touch()
    return tmp_path / "p"


@pytest.mark.parametrize("batch", [1, 2, 32])
def test_broken_images_are_printed_and_skipped(
    checkpoint: str, mixed: Path, capsys: pytest.CaptureFixture[str], batch: int
) -> None:
    rows = predict_json(checkpoint, mixed, batch_size=batch, top=7)
    assert [row["image"] for row in rows] == [str(mixed / "a.png"), str(mixed / "c.png")]
    torch.testing.assert_close(
        torch.tensor([probabilities(row) for row in rows]), expected(checkpoint, noise(0), noise(1)), atol=1e-6, rtol=1e-5
    )
    text, cut, empty, count, written = capsys.readouterr().err.splitlines()
    assert text == f"skipped {mixed}/b.png: not an image"
    assert cut.startswith(f"skipped {mixed}/d.png: ")
    assert empty == f"skipped {mixed}/e.jpg: not an image"
    assert count == "3 of 5 images skipped, 2 classified"
    assert written.endswith("answer.json: 2 images")


def test_stop_at_the_first_broken_image(checkpoint: str, mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"b\.png: not an image; fix or remove it, or .*--on-broken skip"):
        predict.run(options(checkpoint, mixed, on_broken="stop", out=tmp_path / "a.csv"))
    assert not (tmp_path / "a.csv").exists()


def test_all_images_broken(checkpoint: str, mixed: Path) -> None:
    with pytest.raises(ValueError, match=r"none of 2 images can be read; the first: .*b\.png: not an image"):
        predict.run(options(checkpoint, mixed / "b.png", mixed / "d.png"))


def test_image_deleted_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    assert read_image(path, "RGB") == Broken(str(path), "No such file or directory")


def test_too_many_pixels(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 56 - 1)  # above it Pillow warns, above twice of it Pillow raises
    assert_seen_as(checkpoint, save(noise(), tmp_path / "a.png"), noise())
    broken = read_image(save(noise(height=100, width=100), tmp_path / "b.png"), "RGB")
    assert isinstance(broken, Broken)
    assert "exceeds limit" in broken.reason


def test_undecodable_file_names(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\n.png")
    noise().save(name)
    rows = predict_json(checkpoint, name)
    assert rows[0]["image"] == name  # exact, for programs
    for written_as in ("table", "csv"):
        predict.run(options(checkpoint, name, format=written_as))
        assert "\\udce9" in capsys.readouterr().out
    Path(name).write_text("x")
    capsys.readouterr()
    predict.run(options(checkpoint, name, save(noise(), tmp_path / "a.png")))
    line, _count = capsys.readouterr().err.splitlines()
    assert line.endswith("caf\\udce9\\n.png: not an image")


def test_single_broken_image_is_one_line(checkpoint: str, mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["predict", checkpoint, str(mixed / "b.png")], f"tailprop: {mixed / 'b.png'}: not an image\n", capsys)


def test_non_finite_outputs_raise(checkpoint: str, tmp_path: Path) -> None:
    classifier = load_classifier(checkpoint, size_px=32)
    spoilt = replace(classifier, model=torch.nn.Sequential(classifier.model, torch.nn.Threshold(1e9, float("nan"))).eval())
    path = save(noise(), tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"the model's output for .*a\.png is not finite; use --precision fp32"):
        predict.classify_images(spoilt, [path], print)
