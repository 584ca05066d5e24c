"""Sources of images and classes: folders, parquet snapshots, timm's datasets."""

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from tailprop.tasks.classify.evaluate import align_source
from tailprop.tasks.classify.sources import Folder, Parquet, TimmDataset, split_hash
from tests.helpers.folders import jpeg, make_folder, make_snapshot
from tests.helpers.runs import assert_refused, write_recipe


def test_classes_are_matched_by_name(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "images", count=2)
    for k in range(2):
        (root / "train" / "blue" / f"{k}.jpg").unlink()
    (root / "train" / "blue").rmdir()
    only_red = Folder(root, "train")
    align_source(only_red, ("blue", "red"))
    assert only_red.labels.tolist() == [1, 1]
    with pytest.raises(ValueError, match="the dataset has classes that the model does not have: red; the model has cat, dog"):
        align_source(Folder(root, "train"), ("cat", "dog"))
    (root / "train" / "void").mkdir()  # a class without images needs no match
    with_empty = Folder(root, "train")
    align_source(with_empty, ("blue", "red", "yellow"))
    assert with_empty.labels.tolist() == [1, 1]


def test_classes_are_matched_by_index_only_if_no_name_is_shared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_folder(tmp_path / "images", count=1)
    with pytest.raises(
        ValueError, match="the dataset has classes that the model does not have: red; the model has azure, blue"
    ):
        align_source(Folder(root, "train"), ("azure", "blue"))
    source = Folder(root, "train")
    align_source(source, ("n01", "n02"))
    assert source.labels.tolist() == [0, 1]
    assert "they are matched by index" in capsys.readouterr().err


def test_duplicate_class_names_are_distinguished(tmp_path: Path) -> None:
    for name in ("crane", "crane2", "tench"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(jpeg(9))
    source = Folder(tmp_path, "validation", held_out=1.0)
    align_source(source, ("tench", "crane", "crane"))  # timm's class names for the model, Hugging Face's for the dataset
    assert source.labels.tolist() == [1, 2, 0]


def test_held_out_files_are_stable(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(50):
            (tmp_path / name / f"{k}.png").touch()
    train, held_out = Folder(tmp_path, "train"), Folder(tmp_path, "validation")
    assert len(train.labels) + len(held_out.labels) == 100
    assert 8 <= len(held_out.labels) <= 35
    assert split_hash(train) == split_hash(Folder(tmp_path, "train")) != split_hash(held_out)
    (tmp_path / "a" / "new.png").touch()
    assert set(held_out.paths) - {tmp_path / "a" / "new.png"} <= set(Folder(tmp_path, "validation").paths)


def test_split_and_class_folders_are_recognised(tmp_path: Path) -> None:
    """A class may be called train; hidden folders are not classes; a folder with only a validation split can be evaluated."""
    for name in ("train", "car", ".ipynb_checkpoints"):
        (tmp_path / "vehicles" / name).mkdir(parents=True)
        (tmp_path / "vehicles" / name / "1.jpg").write_bytes(jpeg(9))
    (tmp_path / "vehicles" / "car" / "._1.jpg").write_bytes(b"macOS")
    vehicles = Folder(tmp_path / "vehicles", "validation", held_out=1.0)
    assert (vehicles.classes, vehicles.share, len(vehicles.labels)) == (("car", "train"), 1.0, 2)
    only = Folder(make_folder(tmp_path / "only", count=2, splits=("val",)), "validation")
    assert (only.classes, only.share, len(only.labels)) == (("blue", "red"), None, 4)
    with pytest.raises(ValueError, match="none named validation or val or valid or test"):
        Folder(make_folder(tmp_path / "other", count=1, splits=("train", "eval")), "validation")
    (make_folder(tmp_path / "hidden", count=1) / "val" / ".ipynb_checkpoints").mkdir()
    assert Folder(tmp_path / "hidden", "validation").classes == ("blue", "red")


def test_validation_folder_beside_class_folders_is_not_a_class(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "images", splits=("train", "val"))
    for folder in (root / "train").iterdir():
        folder.rename(root / folder.name)
    (root / "train").rmdir()
    assert set(Folder(root, "validation").classes) == {"red", "blue"}
    with pytest.raises(ValueError, match="has a folder val but none named train or training"):
        Folder(root, "train")


def test_image_beside_class_folders_raises(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "images", splits=("train", "val"))
    next((root / "train" / "red").iterdir()).rename(root / "train" / "cover.jpg")
    with pytest.raises(ValueError, match=r"train has both images \(cover.jpg\) and folders"):
        Folder(root, "train")


def test_splits_with_different_classes_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_snapshot(tmp_path / "data", {"train": [0, 1] * 4, "validation": [0, 1]}, classes=2)
    shard = min(root.rglob("validation*.parquet"))
    table = pq.read_table(shard)
    features = json.loads(table.schema.metadata[b"huggingface"])
    features["info"]["features"]["label"]["names"].reverse()
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), shard)
    recipe = write_recipe(tmp_path / "r.yaml", model={"in_chans": 3}, data={"source": "parquet", "root": str(root)})
    assert_refused(["train", str(recipe), "--run.out", str(tmp_path / "run")], "training and validation differ: ", capsys)


def test_every_class_is_in_both_splits(tmp_path: Path) -> None:
    tree = make_folder(tmp_path, count=2, splits=("all",)) / "all"
    parts = [Folder(tree, split, held_out=0.01) for split in ("train", "validation")]
    assert [sorted(part.labels) for part in parts] == [[0, 1], [0, 1]]
    assert not {path.name for path in parts[0].paths if path in parts[1].paths}


def test_parquet_names_and_rows(tmp_path: Path) -> None:
    root = make_snapshot(tmp_path / "data", {"train": [3, 1, 2], "validation": [0]}, classes=4)
    source = Parquet(root, "train", tmp_path / "cache")
    assert source.classes == ("class 0", "class 1", "class 2", "class 3")
    assert source.labels.tolist() == [3, 1, 2]
    assert source.read(1).convert("RGB").getpixel((3, 3)) == Image.open(io.BytesIO(jpeg(1))).getpixel((3, 3))


@pytest.mark.parametrize("named", [True, False])
def test_missing_label_is_named(named: bool, tmp_path: Path) -> None:
    root = make_snapshot(tmp_path / "data", {"train": [0, 1, 0, None, 1, None]}, classes=2)
    for shard in () if named else root.iterdir():
        pq.write_table(pq.read_table(shard).replace_schema_metadata(None), shard)
    message = r"data: train-00001-of-00002.parquet row 0 and 1 more have no label; remove these rows"
    with pytest.raises(ValueError, match=message):
        Parquet(root, "train", tmp_path / "cache")


@pytest.mark.parametrize("name", ["folder", "torch/image_folder"])
def test_folder_through_timm(name: str, tmp_path: Path) -> None:
    root = make_folder(tmp_path, count=2)
    (root / "val" / "blue" / "1.jpg").write_bytes(b"not an image")
    source = TimmDataset(name, root, "validation")
    assert (source.classes, source.labels.tolist()) == (("blue", "red"), [0, 0, 1, 1])
    assert source.read(2).convert("RGB").getpixel((3, 3)) == Image.open(io.BytesIO(jpeg(200))).getpixel((3, 3))
    assert source.name(1).endswith("blue/1.jpg")
    with pytest.raises(OSError, match="cannot identify image file"):  # not the next image
        source.read(1)
    with pytest.raises(ValueError, match="timm cannot open"):
        TimmDataset(name, tmp_path / "nowhere", "validation")


def test_snapshot_through_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_snapshot(tmp_path / "data", {"train": [3, 1, 2], "validation": [2, 0]}, shards=1, classes=4)
    monkeypatch.chdir(tmp_path)
    source = TimmDataset("hfds/./data", tmp_path / "cache", "validation")
    assert source.classes == ("class 0", "class 1", "class 2", "class 3")
    assert source.labels.tolist() == [2, 0]
    assert source.read(0).convert("RGB").getpixel((3, 3)) == Image.open(io.BytesIO(jpeg(2))).getpixel((3, 3))
    assert source.name(1) == "image 1"
