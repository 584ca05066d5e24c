"""`tailprop predict` for a classifier: the same predictions in every format, and its options."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import tyro
from rich.console import Console

import tailprop_cli
from tailprop.data.images import list_images
from tailprop.engine.checkpoint import save_weights
from tailprop.tasks.classify import predict, report
from tailprop.tasks.classify.options import ClassifyPredict
from tailprop.tasks.classify.report import ClassScore, Prediction
from tests.helpers.predicting import (
    CLASSES,
    expected,
    make_run,
    make_weights,
    noise,
    options,
    predict_json,
    probabilities,
    save,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_run(tmp_path_factory.mktemp("run"))


# ---- predictions


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_probabilities_match_the_model(checkpoint: str, tmp_path: Path, batch: int) -> None:
    images = [noise(seed, height=30 + 7 * seed, width=90 - 11 * seed) for seed in range(5)]
    paths = [save(image, tmp_path / f"{i}.png") for i, image in enumerate(images)]
    rows = predict_json(checkpoint, *paths, top=99, batch_size=batch)
    assert [row["image"] for row in rows] == list(map(str, paths))
    wanted = expected(checkpoint, *images)
    assert (wanted[0] - wanted[1]).abs().max() > 0.01  # otherwise the comparison would be trivial
    torch.testing.assert_close(torch.tensor([probabilities(row) for row in rows]), wanted, atol=1e-6, rtol=1e-5)
    for row in rows:
        values = [score["probability"] for score in row["predictions"]]
        assert values == sorted(values, reverse=True)
        assert sum(values) == pytest.approx(1)
        assert [score["name"] for score in row["predictions"]] == [CLASSES[score["index"]] for score in row["predictions"]]


def test_weights_without_run_folder(checkpoint: str, tmp_path: Path) -> None:
    make_weights(tmp_path / "model.safetensors")
    path = save(noise(), tmp_path / "a.png")
    assert predict_json(str(tmp_path / "model.safetensors"), path) == predict_json(checkpoint, path)


def test_precision_and_size_reach_the_model(checkpoint: str, tmp_path: Path) -> None:
    path = save(noise(), tmp_path / "a.png")
    full, half, large = (
        probabilities(predict_json(checkpoint, path, top=7, **settings)[0])
        for settings in ({}, {"precision": "bf16"}, {"size_px": 64})
    )
    assert full == pytest.approx(half, abs=0.1)
    assert full != half
    assert full != large


@pytest.mark.parametrize(("top", "given"), [(1, 1), (3, 3), (99, 7)])
def test_top_is_clipped_to_the_classes(checkpoint: str, tmp_path: Path, top: int, given: int) -> None:
    assert len(predict_json(checkpoint, save(noise(), tmp_path / "a.png"), top=top)[0]["predictions"]) == given


def test_table_csv_and_json_agree(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [save(noise(i), tmp_path / f"{i} [bold],.png") for i in range(2)]
    rows = predict_json(checkpoint, *paths, top=7)
    flat = [(r["image"], rank, g) for r in rows for rank, g in enumerate(r["predictions"], start=1)]
    predict.run(options(checkpoint, *paths, top=7, format="csv"))
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(read[0]) == ["image", "rank", "class_index", "class_name", "probability"]
    assert [(r["image"], int(r["rank"]), int(r["class_index"]), r["class_name"], float(r["probability"])) for r in read] == [
        (image, rank, g["index"], g["name"], g["probability"]) for image, rank, g in flat
    ]
    predict.run(options(checkpoint, *paths, top=7))
    lines = [line for line in capsys.readouterr().out.splitlines() if re.search(r"\d\.\d\d +│$", line)]
    assert [[cell.strip() for cell in line.strip("│").split("│")] for line in lines] == [
        [image if rank == 1 else "", g["name"], f"{100 * g['probability']:.2f}"] for image, rank, g in flat
    ]
    predict.run(options(checkpoint, *paths, top=7, format="json"))
    assert json.loads(capsys.readouterr().out) == rows


def test_best_class_is_bold_and_narrow_terminals_truncate_nothing() -> None:
    prediction = Prediction("folder/" + "x" * 60 + ".png", (ClassScore(0, "tench", 0.75), ClassScore(1, "y" * 40, 0.25)))
    console = Console(width=40, force_terminal=True, color_system="standard", legacy_windows=False)
    text = report._render([prediction], "table", console, escaped=True)
    best, second = (next(line for line in text.splitlines() if figure in line) for figure in ("75.00", "25.00"))
    assert re.search(r"\x1b\[1m *tench", best)
    assert "\x1b[1m" not in second
    assert (text.count("x"), text.count("y")) == (60, 40)


def test_hostile_names_are_escaped_on_a_terminal_and_kept_in_a_file() -> None:
    hostile = Prediction("a\x1b[2J.jpg", (ClassScore(0, "b\u202ec", 0.5),))
    assert "a\\x1b[2J.jpg,1,0,b\\u202ec,0.5" in report._as_csv([hostile], escaped=True)
    assert "a\x1b[2J.jpg,1,0,b\u202ec,0.5" in report._as_csv([hostile], escaped=False)
    text = report._as_json([hostile])
    assert not {"\x1b", "\u202e"} & set(text)
    assert json.loads(text)[0]["image"] == "a\x1b[2J.jpg"
    assert json.loads(text)[0]["predictions"][0]["name"] == "b\u202ec"


@pytest.mark.parametrize(
    ("name", "chosen", "start"),
    [
        ("a.csv", None, "image,"),
        ("a.JSON", None, "["),
        ("a.txt", None, "┏"),
        ("a.csv", "json", "["),
        ("a", "csv", "image,"),
    ],
)
def test_format_follows_the_suffix_unless_given(checkpoint: str, tmp_path: Path, name: str, chosen: Any, start: str) -> None:
    out = tmp_path / "new" / "folder" / name
    predict.run(options(checkpoint, save(noise(), tmp_path / "a.png"), out=out, format=chosen))
    assert out.read_text().startswith(start)
    assert list(out.parent.iterdir()) == [out]  # no temporary file is left


def test_stdout_has_predictions_only(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [save(noise(i), tmp_path / f"{i}.png") for i in range(3)]
    predict.run(options(checkpoint, *paths, batch_size=1, format="json"))
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 3
    assert captured.err == ""  # no progress bar without a terminal


@pytest.mark.parametrize(("batch", "shown"), [(1, True), (3, False)])
def test_progress_bar_on_a_terminal(
    checkpoint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    shown: bool,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich assume a terminal
    paths = [save(noise(i), tmp_path / f"{i}.png") for i in range(3)]
    predict.run(options(checkpoint, *paths, batch_size=batch, format="json"))
    captured = capsys.readouterr()
    assert ("classifying" in captured.err) == shown
    assert len(json.loads(captured.out)) == 3


def test_command_line_accepts_many_images() -> None:
    parsed = tyro.cli(ClassifyPredict, args=["run", "a.png", "photos/*.jpg", "--top", "2", "--on-broken", "stop"])
    assert parsed == ClassifyPredict("run", ("a.png", "photos/*.jpg"), top=2, on_broken="stop")


# ---- which images


def test_files_folders_and_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("z.png", "f/b.JPG", "f/a.png", "f/sub/c.tiff", "f/notes.txt", "f/.hidden.png", "f/.cache/d.png", "odd[1].png"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    listed = [str(path) for path in list_images(["z.png", "f", "./f/a.png", "f/*", str(tmp_path / "z.png"), "odd[1].png"])]
    assert listed == ["z.png", "f/a.png", "f/b.JPG", "f/sub/c.tiff", "odd[1].png"]
    assert list_images(["**/*.tiff", "f/?.png"]) == [Path("f/sub/c.tiff"), Path("f/a.png")]
    assert list_images([f"{tmp_path}/*.png"]) == [tmp_path / "odd[1].png", tmp_path / "z.png"]
    assert list_images(["f/notes.txt"]) == [Path("f/notes.txt")]  # a file given explicitly
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list_images(["~/z*"]) == [tmp_path / "z.png"]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ([], "no images given"),
        (["nowhere.png"], "no image or folder at nowhere.png"),
        (["empty"], "no images in the folder empty; supported suffixes are"),
        (["nothing/*.jpg"], "no image matches 'nothing/*.jpg'"),
        (["words/*"], "no image matches 'words/*'"),
        (["empty/**"], "no image matches 'empty/**'"),
    ],
)
def test_missing_inputs_are_named(
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
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"size_px": 16}, "size_px must be at least 32"),
        ({"out": Path("a.png")}, "--out a.png has an image suffix"),
        ({"out": Path()}, "--out . is a folder"),
    ],
)
def test_invalid_options(checkpoint: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        predict.run(options(checkpoint, "a.png", **settings))


def test_weights_with_foreign_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Metadata that is not a run's settings is ignored; the architecture is given."""
    save(noise(), tmp_path / "a.png")
    model = timm.create_model("tailprop_pico", num_classes=len(CLASSES))
    for text in ("[]", "{}", "not json", '{"model": {"name": "tailprop_pico"}, "data": 3}'):
        notes = dict(architecture="tailprop_pico", classes="\n".join(CLASSES), settings=text)
        save_weights(tmp_path / "w.safetensors", model, notes)
        assert tailprop_cli.main(["predict", str(tmp_path / "w.safetensors"), str(tmp_path / "a.png"), "--format", "csv"]) == 0
        out = capsys.readouterr().out
        assert any(name in out for name in CLASSES)
    save_weights(tmp_path / "w.safetensors", model, {})
    assert tailprop_cli.main(["eval", str(tmp_path / "w.safetensors"), "--model", "nonsense", "--data.source", "digits"]) == 2
    assert (
        capsys.readouterr().err
        == "tailprop: timm has no model 'nonsense'; `tailprop models` lists the models of this package\n"
    )
