"""Label maps in colours: tables, PNGs in RGB and with palettes, and runs that equal those on numbers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tailprop_cli
from tailprop.data.formats.colors import ColorTable, parse_colors
from tailprop.data.formats.label_maps import IGNORE, find_classes, read_labels
from tailprop.data.shapes.render import SceneConfig
from tailprop.data.shapes.write import write_ade20k
from tailprop.tasks.segment.draw import save_labels
from tailprop.tasks.segment.load import load_segmenter
from tests.helpers.runs import assert_refused, last_row, losses, train
from tests.tasks.segment.test_runs import write_recipe

TABLE = ColorTable(((0, 0, 0), (255, 0, 0), (128, 64, 0)), ((224, 224, 192),))


@pytest.mark.parametrize(
    "text",
    [
        "0 0 0\tground\n255 0 0\tsmall cat\n128 64 0\tdog\n224 224 192\tVoid\n",
        "name,r,g,b\nground,0,0,0\nsmall cat, 255, 0, 0\n\ndog,128,64,0\nvoid,224,224,192\n",
        "# label:color_rgb:parts:actions\nground:0,0,0::\nsmall cat:255,0,0::\ndog:128,64,0:a,b:c\nignore:224,224,192::\n",
    ],
)
def test_three_forms_of_a_table(text: str, tmp_path: Path) -> None:
    assert parse_colors(Path("t"), text) == (("ground", "small cat", "dog"), TABLE)
    for name in ("label_colors.txt", "class_dict.csv", "labelmap.txt", "classes.txt"):
        (tmp_path / name).write_text(text)
        found = find_classes(tmp_path, None)
        assert (found.names, found.colors) == (("ground", "small cat", "dog"), TABLE)
        (tmp_path / name).unlink()
    again = "\n".join(TABLE.lines(("ground", "small cat", "dog")))
    assert parse_colors(Path("t"), again) == (("ground", "small cat", "dog"), TABLE)


def test_lists_without_colors_are_as_before() -> None:
    for text in ("cat\ndog\n", "1\n2\n", "cat, kitten\n", "Idx\tName\n1\tcat\n", ""):
        assert parse_colors(Path("t"), text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 0 0 a\n1 1 1\n", "t.txt, line 2: '1 1 1' is not a colour and a name as in the lines before"),
        ("0 0 0 a\n\nb\n", "t.txt, line 3: 'b' is not a colour"),
        ("0 0 0 a\n0 0 256 b\n", "t.txt, line 2: the colour 0 0 256 is not from 0 to 255"),
        ("a,0,0,99999999999999999999\n", "t.txt, line 1: the colour 0 0 9999 is not from 0 to 255"),
        ("0 0 0 a\n0 0 0 b\n", "t.txt, line 2: 'b' has the colour of 'a'"),
        ("0 0 0 a\n0 0 1 a\n", "t.txt, line 2: 'a' is there twice"),
        ("0 0 0 void\n", "t.txt has no class but those without a label"),
    ],
)
def test_wrong_tables_are_refused(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.txt").write_text(text)
    recipe = write_recipe(tmp_path / "r.yaml", tmp_path)
    assert_refused(["train", str(recipe), "--data.colors", "t.txt"], message, capsys)


def test_pixels_become_classes(tmp_path: Path) -> None:
    pixels = np.array([[[255, 0, 0], [0, 0, 0], [224, 224, 192], [128, 64, 0]]], np.uint8)
    expected = [[1, 0, IGNORE, 2]]
    Image.fromarray(pixels).save(tmp_path / "rgb.png")
    Image.fromarray(pixels).convert("P", palette=Image.Palette.ADAPTIVE).save(tmp_path / "palette.png")
    Image.fromarray(np.dstack([pixels, np.full((1, 4), 255, np.uint8)])).save(tmp_path / "alpha.png")
    for name in ("rgb", "palette", "alpha"):
        assert read_labels(tmp_path / f"{name}.png", 3, 0, TABLE).tolist() == expected
    Image.fromarray(np.array([[0, 255, 0]], np.uint8)).save(tmp_path / "mask.png")  # gray is a colour, too
    assert read_labels(tmp_path / "mask.png", 2, 0, ColorTable(((0, 0, 0), (255, 255, 255)))).tolist() == [[0, 1, 0]]
    pixels[0, :2] = 1, 2, 3
    Image.fromarray(pixels).save(tmp_path / "wrong.png")
    with pytest.raises(ValueError, match=r"it has colours that are not a class: 1 2 3 \(2 pixels\); the table has 4 colours"):
        read_labels(tmp_path / "wrong.png", 3, 0, TABLE)
    with pytest.raises(ValueError, match=r"its mode is RGB.*for colours, name their table with --data\.colors"):
        read_labels(tmp_path / "rgb.png", 3, 0)


def test_saved_maps_have_both_numbers_and_colors(tmp_path: Path) -> None:
    labels = np.array([[0, 2], [1, 1]])
    save_labels(tmp_path / "a.png", labels, 0, TABLE)
    with Image.open(tmp_path / "a.png") as image:
        assert image.mode == "P"
        assert np.asarray(image).tolist() == labels.tolist()
        assert np.asarray(image.convert("RGB"))[0, 1].tolist() == [128, 64, 0]
    many = ColorTable(tuple((i % 256, i // 256, 7) for i in range(300)))
    save_labels(tmp_path / "b.png", np.array([[299, 0]]), 0, many)
    assert read_labels(tmp_path / "b.png", 300, 0, many).tolist() == [[299, 0]]


# From end to end


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("numbered") / "data"
    write_ade20k(root, SceneConfig(size_px=64, crowd=0.3), 6, 3)
    return root


@pytest.fixture(scope="module")
def coloured(numbered: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same scenes in colours: RGB in training; in validation a palette whose numbers are in no order."""
    root = tmp_path_factory.mktemp("coloured") / "data"
    shutil.copytree(numbered, root)
    names = find_classes(root, None).names
    table = np.array([(9, 9, 9)] + [(40 * i + 10, 255 - 30 * i, 5 * i) for i in range(len(names))], np.uint8)
    order = np.random.default_rng(0).permutation(len(table))
    for path in (root / "annotations").rglob("*.png"):
        values = np.asarray(Image.open(path))
        image = Image.fromarray(table[values])
        if path.parent.name == "validation":
            image = Image.fromarray(order[values].astype(np.uint8)).convert("P")
            image.putpalette(table[np.argsort(order)].tobytes())
        image.save(path)
    (root / "objectInfo150.txt").unlink()
    lines = [f"{r} {g} {b}\t{name}" for (r, g, b), name in zip(table.tolist(), ("void", *names), strict=True)]
    (root / "table.txt").write_text("\n".join(lines))
    return root


@pytest.fixture(scope="module")
def run(coloured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = write_recipe(tmp_path_factory.mktemp("run") / "r.yaml", coloured, data=COLORS | {"root": str(coloured)})
    return train(recipe)


COLORS = {"short_px": 64, "long_px": 64, "workers": 0, "colors": "table.txt"}


def test_colors_train_as_numbers_do(run: Path, numbered: Path, tmp_path: Path) -> None:
    same = train(write_recipe(tmp_path / "r.yaml", numbered))
    assert losses(run) == losses(same)
    assert last_row(run)["miou"] == last_row(same)["miou"]
    assert load_segmenter(run).names == load_segmenter(same).names
    manifests = [json.loads((folder / "manifest.json").read_text())["split_hash"] for folder in (run, same)]
    assert manifests[0] != manifests[1]


def test_eval_on_colors_and_on_numbers(run: Path, coloured: Path, numbered: Path, tmp_path: Path) -> None:
    shutil.copytree(coloured, tmp_path / "other")
    shutil.move(tmp_path / "other" / "table.txt", tmp_path / "other" / "classes.txt")
    for name, options in (
        ("own", []),
        ("numbers", ["--data.root", str(numbered)]),
        ("list", ["--data.root", str(tmp_path / "other")]),
        ("table", ["--data.root", str(coloured), "--data.colors", "table.txt"]),
    ):
        assert tailprop_cli.main(["eval", str(run), "--out", str(tmp_path / f"{name}.json"), *options]) == 0
        assert json.loads((tmp_path / f"{name}.json").read_text())["miou"] == pytest.approx(last_row(run)["miou"], abs=1e-6)


def test_predictions_can_be_read_again(run: Path, coloured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["predict", str(run), str(coloured / "images" / "validation"), "--out", str(out)]
    assert tailprop_cli.main(command) == 0
    classes = find_classes(out, None)
    segmenter = load_segmenter(run)
    assert (classes.names, classes.colors) == (segmenter.names, segmenter.colors)
    for path in sorted((coloured / "images" / "validation").iterdir()):
        found = read_labels(out / f"{path.stem}.png", len(classes.names), 0, classes.colors)
        np.testing.assert_array_equal(found, segmenter.predict(path).labels.numpy())
    assert f"{segmenter.colors.colors[0]} = ground" in capsys.readouterr().out


def test_wrong_colors_stop_a_run(run: Path, coloured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    shutil.copytree(coloured, root)
    recipe = write_recipe(tmp_path / "r.yaml", root)
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert_refused(command, "has no list of classes", capsys)
    (root / "names.txt").write_text("cat\ndog\n")
    assert_refused([*command, "--data.colors", "names.txt"], "names.txt has no colour in its first line", capsys)
    both = [*command, "--data.colors", "table.txt"]
    assert_refused([*both, "--data.classes", "names.txt"], "data.classes has cat, dog, but data.colors ground", capsys)
    assert_refused([*both, "--data.first-label", "1"], "leave out one of them", capsys)
    lines = (root / "table.txt").read_text().splitlines()
    (root / "table.txt").write_text("\n".join(lines[1:]))  # without void
    assert_refused(["eval", str(run), "--data.root", str(root), "--data.colors", "table.txt"], "9 9 9 (", capsys)


@pytest.mark.parametrize("text", ["7", "[[[1, 2, 3]], []]", '[[[1, 2, "3"]], []]', "[["])
def test_colors_in_metadata_are_checked(text: str, run: Path, tmp_path: Path) -> None:
    with safe_open(run / "model.safetensors", "pt") as file:
        notes = {name: value for name, value in file.metadata().items() if name != "sha256"}
    assert "colors" in notes
    save_file(
        {"a": torch.zeros(1)} | load_file(run / "model.safetensors"), tmp_path / "odd.safetensors", notes | {"colors": text}
    )
    with pytest.raises(ValueError, match="the table of colours in the metadata of"):
        load_segmenter(tmp_path / "odd.safetensors")
