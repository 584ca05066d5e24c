"""`tailprop predict`: pictures of every kind in, the same answer out in every form."""

import csv
import functools
import io
import json
import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import tyro
import yaml
from PIL import Image
from rich.console import Console

import tailprop.backbone  # noqa: F401 - registers the models
from tailprop.checkpoint import save_weights
from tailprop.commands import predict
from tailprop.commands.predict import Guess, Predict, Prediction
from tailprop.data.classify import eval_transform
from tailprop.data.loading import Broken
from tailprop.data.pictures import (
    list_pictures,
    read_picture,
)
from tailprop.load import load_classifier

CLASSES = ("tench", "great white", "a, b", '[red]"x"[/red]', "naïve :cat:", "dog", "six")


load_once = functools.cache(load_classifier)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def make_run(folder: Path, in_chans: int = 3) -> str:
    """A run folder with random weights."""
    settings = dict(model=dict(name="tailprop_pico", in_chans=in_chans), data=dict(source="digits"), augment={})
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    make_weights(folder / "model.safetensors", in_chans)
    return str(folder)


def make_weights(path: Path, in_chans: int = 3) -> None:
    torch.manual_seed(3)
    model = timm.create_model("tailprop_pico", num_classes=len(CLASSES), in_chans=in_chans)
    torch.nn.init.normal_(model.head.fc.weight, std=0.15)  # far from uniform, so that pictures differ in their answers
    metadata = dict(architecture="tailprop_pico", num_classes=str(len(CLASSES)), classes="\n".join(CLASSES))
    save_weights(path, model, metadata)


def noise(seed: int = 0, height: int = 40, width: int = 56, channels: int = 3) -> Image.Image:
    """Coarse colours that survive JPEG and resizing."""
    grid = np.random.default_rng(seed).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    return Image.fromarray(grid.squeeze()).resize((width, height), Image.Resampling.NEAREST)


def save(picture: Image.Image, path: Path, **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **settings)
    return path


def answer(checkpoint: str, *pictures: Path | str, **settings: Any) -> list[dict[str, Any]]:
    """The JSON `predict` writes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answer.json"
        predict.run(options(checkpoint, *pictures, out=out, **settings))
        return json.loads(out.read_text())


def options(checkpoint: str, *pictures: Path | str, **settings: Any) -> Predict:
    return Predict(checkpoint, tuple(map(str, pictures)), **{"size_px": 32, "device": "cpu", **settings})


def chances(row: dict[str, Any]) -> list[float]:
    """Probabilities by class."""
    by_index = {guess["index"]: guess["probability"] for guess in row["predictions"]}
    return [by_index[i] for i in range(len(CLASSES))]


def expected(checkpoint: str, *pictures: Image.Image) -> torch.Tensor:
    """Softmax of the model on `eval_transform`'s tensors, with none of the command in between."""
    classifier = load_once(checkpoint, size_px=32)
    transform = eval_transform(classifier.data, classifier.augment, classifier.in_chans)
    with torch.inference_mode():
        return classifier.model(torch.stack([transform(picture) for picture in pictures])).softmax(1)


def assert_seen_as(checkpoint: str, path: Path, picture: Image.Image, atol: float = 1e-6) -> None:
    (row,) = answer(checkpoint, path, top=99)
    torch.testing.assert_close(torch.tensor(chances(row)), expected(checkpoint, picture)[0], atol=atol, rtol=1e-5)


# ---- the answer


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_probabilities_are_the_models(checkpoint: str, tmp_path: Path, batch: int) -> None:
    pictures = [noise(seed, height=30 + 7 * seed, width=90 - 11 * seed) for seed in range(5)]
    paths = [save(picture, tmp_path / f"{i}.png") for i, picture in enumerate(pictures)]
    rows = answer(checkpoint, *paths, top=99, batch=batch)
    assert [row["picture"] for row in rows] == list(map(str, paths))
    wanted = expected(checkpoint, *pictures)
    assert (wanted[0] - wanted[1]).abs().max() > 0.01  # or the comparison would prove nothing
    torch.testing.assert_close(torch.tensor([chances(row) for row in rows]), wanted, atol=1e-6, rtol=1e-5)
    for row in rows:
        probabilities = [guess["probability"] for guess in row["predictions"]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1)
        assert [guess["name"] for guess in row["predictions"]] == [CLASSES[guess["index"]] for guess in row["predictions"]]


def test_weights_without_their_run(checkpoint: str, tmp_path: Path) -> None:
    make_weights(tmp_path / "model.safetensors")
    path = save(noise(), tmp_path / "a.png")
    assert answer(str(tmp_path / "model.safetensors"), path) == answer(checkpoint, path)


def test_precision_and_size_reach_the_model(checkpoint: str, tmp_path: Path) -> None:
    path = save(noise(), tmp_path / "a.png")
    full, half, large = (
        chances(answer(checkpoint, path, top=7, **settings)[0]) for settings in ({}, {"precision": "bf16"}, {"size_px": 64})
    )
    assert full == pytest.approx(half, abs=0.1)
    assert full != half
    assert full != large


@pytest.mark.parametrize(("top", "given"), [(1, 1), (3, 3), (99, 7)])
def test_top_is_clipped_to_the_classes(checkpoint: str, tmp_path: Path, top: int, given: int) -> None:
    assert len(answer(checkpoint, save(noise(), tmp_path / "a.png"), top=top)[0]["predictions"]) == given


def test_table_csv_and_json_agree(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [save(noise(i), tmp_path / f"{i} [bold],.png") for i in range(2)]
    rows = answer(checkpoint, *paths, top=7)
    flat = [(r["picture"], rank, g) for r in rows for rank, g in enumerate(r["predictions"], start=1)]
    predict.run(options(checkpoint, *paths, top=7, format="csv"))
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(read[0]) == ["picture", "rank", "class_index", "class_name", "probability"]
    assert [(r["picture"], int(r["rank"]), int(r["class_index"]), r["class_name"], float(r["probability"])) for r in read] == [
        (picture, rank, g["index"], g["name"], g["probability"]) for picture, rank, g in flat
    ]
    predict.run(options(checkpoint, *paths, top=7))
    lines = [line for line in capsys.readouterr().out.splitlines() if re.search(r"\d\.\d\d +│$", line)]
    assert [[cell.strip() for cell in line.strip("│").split("│")] for line in lines] == [
        [picture if rank == 1 else "", g["name"], f"{100 * g['probability']:.2f}"] for picture, rank, g in flat
    ]
    predict.run(options(checkpoint, *paths, top=7, format="json"))
    assert json.loads(capsys.readouterr().out) == rows


def test_best_is_bold_and_a_narrow_terminal_loses_nothing() -> None:
    prediction = Prediction("folder/" + "x" * 60 + ".png", (Guess(0, "tench", 0.75), Guess(1, "y" * 40, 0.25)))
    console = Console(width=40, force_terminal=True, color_system="standard", legacy_windows=False)
    text = predict._render([prediction], "table", console)
    best, second = (next(line for line in text.splitlines() if figure in line) for figure in ("75.00", "25.00"))
    assert re.search(r"\x1b\[1m *tench", best)
    assert "\x1b[1m" not in second
    assert (text.count("x"), text.count("y")) == (60, 40)


@pytest.mark.parametrize(
    ("name", "chosen", "start"),
    [
        ("a.csv", None, "picture,"),
        ("a.JSON", None, "["),
        ("a.txt", None, "┏"),
        ("a.csv", "json", "["),
        ("a", "csv", "picture,"),
    ],
)
def test_form_follows_the_suffix_unless_given(checkpoint: str, tmp_path: Path, name: str, chosen: Any, start: str) -> None:
    out = tmp_path / "new" / "folder" / name
    predict.run(options(checkpoint, save(noise(), tmp_path / "a.png"), out=out, format=chosen))
    assert out.read_text().startswith(start)
    assert list(out.parent.iterdir()) == [out]  # nothing half written stays


def test_standard_output_holds_the_answer_alone(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [save(noise(i), tmp_path / f"{i}.png") for i in range(3)]
    predict.run(options(checkpoint, *paths, batch=1, format="json"))
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 3
    assert captured.err == ""  # no bar where nobody watches


@pytest.mark.parametrize(("batch", "shown"), [(1, True), (3, False)])
def test_a_terminal_gets_a_bar_for_more_than_one_batch(
    checkpoint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    shown: bool,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    paths = [save(noise(i), tmp_path / f"{i}.png") for i in range(3)]
    predict.run(options(checkpoint, *paths, batch=batch, format="json"))
    captured = capsys.readouterr()
    assert ("classifying" in captured.err) == shown
    assert len(json.loads(captured.out)) == 3


def test_command_line_takes_many_pictures() -> None:
    parsed = tyro.cli(Predict, args=["run", "a.png", "photos/*.jpg", "--top", "2", "--on-broken", "stop"])
    assert parsed == Predict("run", ("a.png", "photos/*.jpg"), top=2, on_broken="stop")


# ---- which pictures


def test_files_folders_and_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("z.png", "f/b.JPG", "f/a.png", "f/sub/c.tiff", "f/notes.txt", "f/.hidden.png", "f/.cache/d.png", "odd[1].png"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    listed = [str(path) for path in list_pictures(["z.png", "f", "./f/a.png", "f/*", str(tmp_path / "z.png"), "odd[1].png"])]
    assert listed == ["z.png", "f/a.png", "f/b.JPG", "f/sub/c.tiff", "odd[1].png"]
    assert list_pictures(["**/*.tiff", "f/?.png"]) == [Path("f/sub/c.tiff"), Path("f/a.png")]
    assert list_pictures([f"{tmp_path}/*.png"]) == [tmp_path / "odd[1].png", tmp_path / "z.png"]
    assert list_pictures(["f/notes.txt"]) == [Path("f/notes.txt")]  # named outright
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list_pictures(["~/z*"]) == [tmp_path / "z.png"]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ([], "no pictures given"),
        (["nowhere.png"], "no picture or folder at nowhere.png"),
        (["empty"], "no pictures in the folder empty; looked for"),
        (["nothing/*.jpg"], "no picture matches 'nothing/*.jpg'"),
        (["words/*"], "no picture matches 'words/*'"),
        (["empty/**"], "no picture matches 'empty/**'"),
    ],
)
def test_what_is_not_there_is_named(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("words").mkdir()
    Path("words/a.txt").touch()
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        predict.run(options(checkpoint, *named))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top": 0}, "top must be at least 1, got 0"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"size_px": 16}, "size_px must be at least 32"),
        ({"out": Path("a.png")}, "--out a.png is named like a picture"),
        ({"out": Path()}, "--out . is a folder"),
    ],
)
def test_settings_that_cannot_work(checkpoint: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        predict.run(options(checkpoint, "a.png", **settings))


# ---- kinds of pictures


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".tiff"])
def test_rotated_by_the_camera(checkpoint: str, tmp_path: Path, suffix: str) -> None:
    upright = noise(height=60, width=40)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    lying = upright.transpose(Image.Transpose.ROTATE_90)
    by_suffix: dict[str, dict[str, Any]] = {".jpg": dict(quality=100, subsampling=0), ".webp": dict(lossless=True)}
    lossless = by_suffix.get(suffix, {})
    as_tag: dict[str, Any] = dict(tiffinfo={0x0112: 6}) if suffix == ".tiff" else dict(exif=exif)
    path = save(lying, tmp_path / f"a{suffix}", **lossless, **as_tag)
    assert_seen_as(checkpoint, path, upright, atol=0.01 if suffix == ".jpg" else 1e-6)
    difference = expected(checkpoint, upright)[0] - expected(checkpoint, lying)[0]
    assert difference.abs().max() > 0.02  # lying it would be seen differently


def test_damaged_notes_of_the_camera_cost_no_picture(checkpoint: str, tmp_path: Path) -> None:
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
    picture = read_picture(save(Image.fromarray(values), tmp_path / "a.png"), "L")
    assert np.asarray(picture).tolist() == [[0, 0, 1, 128, 254, 255, 255]]


def test_palette_with_transparency(checkpoint: str, tmp_path: Path) -> None:
    colours = noise().quantize(16)
    path = save(colours, tmp_path / "a.png", transparency=bytes([0, 128, 255] + [255] * 13))
    with Image.open(path) as file:
        assert isinstance(file.info["transparency"], bytes)  # the kind Pillow warns of
    assert isinstance(read_picture(path, "RGB"), Image.Image)  # a warning, an error here, would make it Broken
    assert_seen_as(checkpoint, path, colours.convert("RGB"))
    gif = save(colours, tmp_path / "a.gif", transparency=3)
    assert_seen_as(checkpoint, gif, colours.convert("RGB"))


def test_cmyk_jpeg(checkpoint: str, tmp_path: Path) -> None:
    path = save(noise().convert("CMYK"), tmp_path / "a.jpg", quality=100, subsampling=0)
    assert_seen_as(checkpoint, path, noise(), atol=0.02)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "RGB"])
def test_modes(checkpoint: str, tmp_path: Path, mode: str) -> None:
    picture = noise().convert(mode)
    assert_seen_as(checkpoint, save(picture, tmp_path / "a.png"), picture.convert("RGB"))


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (30000, 1), (33, 2)])
def test_odd_sizes(checkpoint: str, tmp_path: Path, size: tuple[int, int]) -> None:
    path = save(Image.new("RGB", size, (200, 30, 90)), tmp_path / "a.png")
    assert_seen_as(checkpoint, path, Image.new("RGB", (40, 40), (200, 30, 90)), atol=1e-4)


@pytest.mark.parametrize(("in_chans", "mode"), [(1, "L"), (4, "RGBA")])
def test_models_of_other_channels(tmp_path: Path, in_chans: int, mode: str) -> None:
    checkpoint = make_run(tmp_path, in_chans)
    assert_seen_as(checkpoint, save(noise(channels=4), tmp_path / "a.png"), noise(channels=4).convert(mode))
    assert_seen_as(checkpoint, save(Image.fromarray(gray16()), tmp_path / "b.png"), noise(channels=1).convert(mode))


def test_models_no_picture_fits(tmp_path: Path) -> None:
    checkpoint = make_run(tmp_path, in_chans=2)
    with pytest.raises(ValueError, match="tailprop_pico takes 2 channels; pictures have 1, 3 or 4"):
        predict.run(options(checkpoint, save(noise(), tmp_path / "a.png")))


def test_pixels_without_a_known_white_are_refused(tmp_path: Path) -> None:
    floats = save(Image.fromarray(np.ones((4, 4), np.float32)), tmp_path / "a.tiff")
    wide = save(Image.fromarray(np.full((4, 4), 70_000, np.int32)), tmp_path / "b.tiff")
    for path, bits in ((floats, "floats"), (wide, "32 bits")):
        broken = read_picture(path, "RGB")
        assert isinstance(broken, Broken)
        assert bits in broken.reason


# ---- broken pictures


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two good pictures, one that is text, one cut short, one empty."""
    save(noise(0), tmp_path / "p" / "a.png")
    (tmp_path / "p" / "b.png").write_text("not a picture at all\n")
    whole = save(noise(1), tmp_path / "p" / "c.png").read_bytes()
    (tmp_path / "p" / "d.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "p" / "e.jpg").touch()
    return tmp_path / "p"


@pytest.mark.parametrize("batch", [1, 2, 32])
def test_broken_pictures_are_named_and_skipped(
    checkpoint: str, mixed: Path, capsys: pytest.CaptureFixture[str], batch: int
) -> None:
    rows = answer(checkpoint, mixed, batch=batch, top=7)
    assert [row["picture"] for row in rows] == [str(mixed / "a.png"), str(mixed / "c.png")]
    torch.testing.assert_close(
        torch.tensor([chances(row) for row in rows]), expected(checkpoint, noise(0), noise(1)), atol=1e-6, rtol=1e-5
    )
    text, cut, empty, count = capsys.readouterr().err.splitlines()
    assert text == f"skipped {mixed}/b.png: not a picture"
    assert cut.startswith(f"skipped {mixed}/d.png: ")
    assert empty == f"skipped {mixed}/e.jpg: not a picture"
    assert count == "3 of 5 pictures skipped, 2 classified"


def test_stop_at_the_first_broken_picture(checkpoint: str, mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"b\.png: not a picture; mend or remove it, or .*--on-broken skip"):
        predict.run(options(checkpoint, mixed, on_broken="stop", out=tmp_path / "a.csv"))
    assert not (tmp_path / "a.csv").exists()


def test_nothing_but_broken_pictures(checkpoint: str, mixed: Path) -> None:
    with pytest.raises(ValueError, match=r"none of the 2 pictures can be read; the first: .*b\.png: not a picture"):
        predict.run(options(checkpoint, mixed / "b.png", mixed / "d.png"))


def test_a_picture_that_went_away(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    assert read_picture(path, "RGB") == Broken(str(path), "No such file or directory")


def test_too_many_pixels(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 56 - 1)  # over it Pillow warns, over its double it refuses
    assert_seen_as(checkpoint, save(noise(), tmp_path / "a.png"), noise())
    broken = read_picture(save(noise(height=100, width=100), tmp_path / "b.png"), "RGB")
    assert isinstance(broken, Broken)
    assert "exceeds limit" in broken.reason


def test_names_that_are_no_text(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\n.png")
    noise().save(name)
    rows = answer(checkpoint, name)
    assert rows[0]["picture"] == name  # exact, for programs
    for written_as in ("table", "csv"):
        predict.run(options(checkpoint, name, format=written_as))
        assert "\\udce9" in capsys.readouterr().out
    Path(name).write_text("x")
    with pytest.raises(ValueError, match="none of the 1 pictures"):
        predict.run(options(checkpoint, name))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("caf\\udce9\\n.png: not a picture")


def test_answers_that_are_not_finite(checkpoint: str, tmp_path: Path) -> None:
    classifier = load_classifier(checkpoint, size_px=32)
    spoilt = replace(classifier, model=torch.nn.Sequential(classifier.model, torch.nn.Threshold(1e9, float("nan"))).eval())
    path = save(noise(), tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"answer to .*a\.png is not finite"):
        predict.classify_pictures(spoilt, [path], torch.device("cpu"), print)
