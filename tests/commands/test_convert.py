"""`tailprop convert`: YOLO's labels and Pascal VOC as COCO json."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import tailprop
import tailprop_cli
from tailprop.data.formats.yolo import parse_line
from tests.helpers.detecting import write_recipe
from tests.helpers.formats import SIDE, write_voc, write_yolo
from tests.helpers.runs import assert_refused, last_row


def objects(content: dict[str, Any]) -> list[tuple[str, str, list[float]]]:
    """Image, class and box of every object; images of VOC have the name of their split before their own."""
    images = {image["id"]: image["file_name"].split("_")[-1] for image in content["images"]}
    names = {category["id"]: category["name"] for category in content["categories"]}
    return sorted((images[a["image_id"]], names[a["category_id"]], a["bbox"]) for a in content["annotations"])


def assert_same_objects(root: Path, expected: dict[str, dict[str, Any]]) -> None:
    for split, content in expected.items():
        converted = json.loads((root / "coco" / f"{split}.json").read_text())
        found, wanted = objects(converted), objects(content)
        assert [item[:2] for item in found] == [item[:2] for item in wanted]
        for (*_, box), (*_, true) in zip(found, wanted, strict=True):
            assert box == pytest.approx(true, abs=2e-3)
        assert all((image["width"], image["height"]) == (SIDE, SIDE) for image in converted["images"])


def train_on(root: Path, tmp_path: Path, told: str) -> Path:
    """Train with the options of the command that `convert` recommends, evaluate and predict."""
    line = next(line for line in told.splitlines() if line.startswith("train with: "))
    options = shlex.split(line.removeprefix("train with: tailprop train finetune_coco"))
    recipe, run = write_recipe(tmp_path / "small.yaml", root, optim={"epochs": 1}), tmp_path / "run"
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run), *options]) == 0
    assert tailprop_cli.main(["eval", str(run), "--out", str(tmp_path / "e.json")]) == 0
    assert json.loads((tmp_path / "e.json").read_text())["box_ap"] == pytest.approx(last_row(run)["box_ap"])
    return run


@pytest.mark.parametrize("polygons", [False, True])
def test_yolo_from_labels_to_predictions(polygons: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "mine"
    expected = write_yolo(root, polygons)
    assert tailprop_cli.main(["convert", str(root)]) == 0
    told = capsys.readouterr().out
    assert_same_objects(root, expected)
    run = train_on(root, tmp_path, told)
    found = tailprop.load(run).predict(next((root / "images" / "val").iterdir()), score=0.0)
    assert (found.masks is not None) is polygons
    content = json.loads((root / "coco" / "train.json").read_text())
    if polygons:  # a polygon of four corners covers its box
        assert all(a["area"] == pytest.approx(a["bbox"][2] * a["bbox"][3], rel=1e-3) for a in content["annotations"])
        assert "with a polygon" in told


def test_voc_from_xml_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "VOC2007"
    expected = write_voc(root)
    assert tailprop_cli.main(["convert", str(root)]) == 0
    told = capsys.readouterr().out
    assert_same_objects(root, expected)
    run = train_on(root, tmp_path, told)
    predictions = ["predict", str(run), str(root / "JPEGImages"), "--score", "0", "--out", str(tmp_path / "out")]
    assert tailprop_cli.main(predictions) == 0
    assert len(list((tmp_path / "out").glob("*.jpg"))) == 9


@pytest.mark.parametrize(("difficult", "crowds"), [("ignore", [0, 1]), ("keep", [0, 0]), ("drop", [0])])
def test_difficult_objects_of_voc(difficult: str, crowds: list[int], tmp_path: Path) -> None:
    """Also the meaning of corners: they count from 1, so 1 to 64 is all of 64 pixels."""
    write_voc_image(tmp_path, VOC_OBJECT + VOC_OBJECT.replace("<difficult>0", "<difficult>1"))
    assert tailprop_cli.main(["convert", str(tmp_path), "--difficult", difficult, "--out", str(tmp_path / "out")]) == 0
    content = json.loads((tmp_path / "out" / "all.json").read_text())
    assert [a["iscrowd"] for a in content["annotations"]] == crowds
    assert content["annotations"][0]["bbox"] == [0, 9, 64, 11]


VOC_OBJECT = (
    "<object>\n<name>cat</name>\n<difficult>0</difficult>\n"
    "<bndbox><xmin>1</xmin><ymin>10</ymin><xmax>64</xmax><ymax>20</ymax></bndbox>\n</object>\n"
)


def write_voc_image(root: Path, inside: str, size: str = "64x48") -> None:
    for folder in ("Annotations", "JPEGImages"):
        (root / folder).mkdir(exist_ok=True)
    width, height = size.split("x")
    Image.new("RGB", (64, 48)).save(root / "JPEGImages" / "a.png")
    text = f"<annotation>\n<size><width>{width}</width><height>{height}</height></size>\n{inside}</annotation>"
    (root / "Annotations" / "a.xml").write_text(text)


@pytest.mark.parametrize(
    ("inside", "size", "message"),
    [
        (VOC_OBJECT.replace("</name>", ""), "64x48", "a.xml: it is not XML (mismatched tag: line 7"),
        (VOC_OBJECT.replace("<name>cat</name>", ""), "64x48", "a.xml, line 3: its object has no name"),
        (VOC_OBJECT.replace("bndbox", "box"), "64x48", "a.xml, line 3: the object 'cat' has no bndbox"),
        (VOC_OBJECT.replace("<xmax>64", "<xmax>wide"), "64x48", "a.xml, line 3: its xmax is 'wide', not a number"),
        (VOC_OBJECT.replace("<xmax>64", "<xmax>66"), "64x48", "a.xml, line 3: its box 1 10 66 20 is not in the image of 64x48"),
        (VOC_OBJECT.replace("<ymin>10", "<ymin>nan"), "64x48", "a.xml, line 3: its box 1 nan 64 20 is not in the image"),
        (VOC_OBJECT.replace("<ymax>20", "<ymax>9"), "64x48", "a.xml, line 3: its box 1 10 64 9 is not in the image"),
        (VOC_OBJECT.replace("cult>0", "cult>maybe"), "64x48", "a.xml, line 3: difficult is 'maybe', not 0 or 1"),
        (VOC_OBJECT, "640x480", "a.xml, line 2: it is for 640x480, but the image is 64x48"),
        ("", "64x48", "has an object"),
    ],
)
def test_wrong_voc_is_refused(inside: str, size: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_voc_image(tmp_path, inside, size)
    assert_refused(["convert", str(tmp_path)], message, capsys)
    assert not (tmp_path / "coco").exists()


def test_other_wrong_forms_of_voc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_voc_image(tmp_path, VOC_OBJECT)
    lists = tmp_path / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    for text, message in (
        ("a 1\n", "train.txt, line 1: it is 'a 1', not the name of an image alone"),
        ("../a\n", "train.txt, line 1: it is '../a', not the name of an image alone"),
        ("a\nb\n", "b.xml: there is no image b in JPEGImages"),
        ("\n", "train.txt lists no images"),
    ):
        (lists / "train.txt").write_text(text)
        assert_refused(["convert", str(tmp_path)], message, capsys)
    (lists / "train.txt").write_text("a\n")
    assert tailprop_cli.main(["convert", str(tmp_path)]) == 0
    (tmp_path / "Annotations" / "a.xml").write_text('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>')
    assert_refused(["convert", str(tmp_path), "--overwrite"], "it is not usable: line 1 defines an entity", capsys)
    (tmp_path / "Annotations" / "a.xml").unlink()
    assert_refused(["convert", str(tmp_path), "--overwrite"], "a.xml: the file is missing", capsys)
    shutil.rmtree(tmp_path / "JPEGImages")
    assert_refused(["convert", str(tmp_path), "--overwrite"], "no folder JPEGImages", capsys)


def write_yolo_image(root: Path, label: str, names: str = "names: [cat, dog]") -> None:
    for folder in ("images", "labels"):
        (root / folder).mkdir(exist_ok=True)
    Image.new("RGB", (64, 48)).save(root / "images" / "a.png")
    (root / "labels" / "a.txt").write_text(label)
    (root / "data.yaml").write_text(f"train: images\n{names}\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.2", "it has 4 numbers; a box has 5 (class x y w h), a polygon an odd number from 7 on"),
        ("0 0.5 0.5 0.2 0.2 0.9", "it has 6 numbers"),  # a prediction with its confidence
        ("0 0.5 0.5 0.2 0.2 0.9 0.1 0.1", "it has 8 numbers"),
        ("cat 0.5 0.5 0.2 0.2", "'cat' is not a number"),
        ("2 0.5 0.5 0.2 0.2", "its class is '2', but the 2 classes are 0 to 1"),
        ("0.5 0.5 0.5 0.2 0.2", "its class is '0.5'"),
        ("-1 0.5 0.5 0.2 0.2", "its class is '-1'"),
        ("0 32 24 0.2 0.2", "'32' is outside of the image; coordinates are shares of its sides, from 0 to 1"),
        ("0 nan 0.5 0.2 0.2", "'nan' is outside of the image"),
        ("0 0.5 0.5 0 0.2", "it is empty: its width or height is 0"),
        ("0 0.1 0.1 0.2 0.1 0.3 0.1", "it is empty"),
    ],
)
def test_wrong_labels_of_yolo_are_refused(line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_yolo_image(tmp_path, f"1 0.5 0.5 0.2 0.2\n{line}\n")
    assert_refused(["convert", str(tmp_path)], f"labels/a.txt, line 2: {message}", capsys)
    assert not (tmp_path / "coco").exists()
    assert tailprop_cli.main(["convert", str(tmp_path), "--on-broken", "skip"]) == 0
    assert f"labels/a.txt, line 2: {message}" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "coco" / "train.json").read_text())["annotations"]) == 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("names: [cat, cat]", "data.yaml has the class 'cat' twice"),
        ("names: [cat, no]", "the name of a class is False, not a line of text; write it in quotes"),
        ("names: {0: cat, 2: dog}", "the numbers of its names must be 0 to 1"),
        ("nc: 2", "data.yaml has no names of classes"),
        ("nc: 3\nnames: [cat, dog]", "data.yaml has nc: 3, but 2 names"),
        ("kpt_shape: [17, 3]\nnames: [cat, dog]", "data.yaml describes keypoints"),
        ("val: [images, 7]\nnames: [cat, dog]", "data.yaml: val is 7, not a folder or a text file"),
        ("val: nowhere\nnames: [cat, dog]", "nowhere, which val names"),
        ("val: list.txt\nnames: [cat, dog]", "list.txt, line 2: there is no image"),
        ("names: [", "data.yaml is not YAML"),
    ],
)
def test_wrong_yaml_of_yolo_is_refused(names: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_yolo_image(tmp_path, "0 0.5 0.5 0.2 0.2\n", names)
    (tmp_path / "list.txt").write_text("images/a.png\nimages/b.png\n")
    assert_refused(["convert", str(tmp_path)], message, capsys)


def test_other_wrong_forms_of_yolo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["convert", str(tmp_path)], "is not a dataset to convert: YOLO's has data.yaml or classes.txt", capsys)
    assert_refused(["convert", str(tmp_path), "--format", "voc"], "is not a Pascal VOC dataset", capsys)
    assert_refused(["convert", str(tmp_path / "nowhere")], "no dataset at", capsys)
    write_yolo_image(tmp_path, "0 0.5 0.5 0.2 0.2\n")
    (tmp_path / "labels" / "b.txt").write_text("")
    assert_refused(["convert", str(tmp_path)], "labels/b.txt: its image is missing", capsys)
    (tmp_path / "images" / "b.png").write_bytes(b"no image")
    assert_refused(["convert", str(tmp_path)], "images/b.png: not an image", capsys)
    shutil.copy(tmp_path / "images" / "a.png", tmp_path / "images" / "a.bmp")
    assert_refused(["convert", str(tmp_path)], "has the same label file", capsys)
    (tmp_path / "labels" / "a.txt").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "images").glob("*.bmp"):
        path.unlink()
    assert_refused(["convert", str(tmp_path)], "labels/a.txt: it is not a text file in UTF-8", capsys)
    shutil.rmtree(tmp_path / "labels")
    assert_refused(["convert", str(tmp_path)], "none of the 2 images has a label file; the first should be", capsys)


def test_files_are_replaced_only_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_yolo_image(tmp_path, "0 0.5 0.5 0.2 0.2\n")
    assert tailprop_cli.main(["convert", str(tmp_path)]) == 0
    first = (tmp_path / "coco" / "train.json").read_text()
    write_yolo_image(tmp_path, "1 0.5 0.5 0.2 0.2\n")
    assert_refused(["convert", str(tmp_path)], "train.json exists; choose another --out, or give --overwrite", capsys)
    assert (tmp_path / "coco" / "train.json").read_text() == first
    assert tailprop_cli.main(["convert", str(tmp_path), "--overwrite"]) == 0
    assert "replaced " in capsys.readouterr().out
    assert (tmp_path / "coco" / "train.json").read_text() != first


def test_classes_txt_without_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """LabelImg's layout: a part may be held out; a repeated line is one object; an image without a file has none."""
    write_yolo_image(tmp_path, "1 0.5 0.5 0.5 0.5\n1 0.5 0.5 0.5 0.5\n\n")
    (tmp_path / "data.yaml").unlink()
    (tmp_path / "labels" / "classes.txt").write_text("cat\ndog\n")
    for name in "bcd":
        shutil.copy(tmp_path / "images" / "a.png", tmp_path / "images" / f"{name}.png")
    assert tailprop_cli.main(["convert", str(tmp_path)]) == 0
    (entry,) = json.loads((tmp_path / "coco" / "all.json").read_text())["annotations"]
    assert entry["bbox"] == [16, 12, 32, 24]
    assert tailprop_cli.main(["convert", str(tmp_path), "--held-out", "0.25"]) == 0
    sizes = {split: len(json.loads((tmp_path / f"coco/{split}.json").read_text())["images"]) for split in ("train", "val")}
    assert sizes == {"train": 3, "val": 1}
    assert_refused(["convert", str(tmp_path), "--held-out", "0.01"], "leaves one of the splits empty", capsys)


def test_images_that_lie_on_their_side(tmp_path: Path) -> None:
    """Ultralytics' coordinates are those of the upright image."""
    write_yolo_image(tmp_path, "0 0.5 0.5 1 0.5\n")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (64, 48)).save(tmp_path / "images" / "a.jpg", exif=exif)
    (tmp_path / "images" / "a.png").unlink()
    assert tailprop_cli.main(["convert", str(tmp_path / "data.yaml")]) == 0
    content = json.loads((tmp_path / "coco" / "train.json").read_text())
    assert [(image["width"], image["height"]) for image in content["images"]] == [(48, 64)]
    assert content["annotations"][0]["bbox"] == [0, 16, 48, 32]


def test_a_polygon_is_clipped_and_has_its_box() -> None:
    found = parse_line("1 -0.005 0.1 0.5 0.1 0.5 1.005", (100, 10), 2)
    assert found.polygon == pytest.approx((0, 1, 50, 1, 50, 10))
    assert found.box == pytest.approx((0, 1, 50, 9))
