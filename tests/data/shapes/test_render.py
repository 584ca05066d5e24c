"""Generated scenes, and reading them in the formats of real datasets."""

import contextlib
import io
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.path import Path as Polygon
from PIL import Image
from pycocotools.coco import COCO

import tailprop_cli
from tailprop.data.shapes import write as scenes
from tailprop.data.shapes.render import LEAST_VISIBLE, SHAPES, Scene, SceneConfig, make_scene
from tailprop.data.shapes.write import ensure_ade20k, ensure_coco, write_ade20k, write_coco, write_parquet, write_scenes
from tailprop.tasks.classify.sources import Parquet

SMALL = SceneConfig(size_px=64, crowd=0.5, seed=3)


def test_scene_is_a_function_of_seed_and_index() -> None:
    first, again = make_scene(SMALL, 5), make_scene(SMALL, 5)
    assert np.array_equal(first.image, again.image)
    assert np.array_equal(first.labels(), again.labels())
    assert not np.array_equal(first.image, make_scene(SMALL, 6).image)
    assert not np.array_equal(first.image, make_scene(SceneConfig(size_px=64, seed=4), 5).image)


def test_masks_are_the_visible_pixels() -> None:
    scenes = [make_scene(SMALL, index) for index in range(40)]
    hidden, small, crowds = 0, 0, 0
    for scene in scenes:
        assert sum(i.mask.astype(int) for i in scene.instances).max() <= 1  # no pixel belongs to two shapes
        for instance in scene.instances:
            crowds += instance.is_crowd
            if not instance.is_crowd:
                assert LEAST_VISIBLE * instance.area <= instance.mask.sum() <= instance.area
                hidden += instance.mask.sum() < instance.area
                small += instance.mask.sum() < 10 * 10
    assert hidden > 5  # there are occlusions, small shapes and crowds
    assert small > 5
    assert 10 < crowds < 30


@pytest.mark.parametrize(("name", "corners", "inner"), [("triangle", 3, None), ("star", 5, 0.45)])
def test_corners_of_polygons(name: str, corners: int, inner: float | None) -> None:
    radii = [1.0] * corners if inner is None else [1.0, inner] * corners
    angles = [2 * math.pi * k / len(radii) for k in range(len(radii))]
    polygon = Polygon([(r * math.sin(a), -r * math.cos(a)) for r, a in zip(radii, angles, strict=True)], closed=False)
    v, u = np.mgrid[-1.1:1.1:60j, -1.1:1.1:60j]
    expected = polygon.contains_points(np.stack([u.ravel(), v.ravel()], axis=1)).reshape(u.shape)
    assert np.array_equal(SHAPES[name](u, v), expected)


def test_coco_has_exact_masks(tmp_path: Path) -> None:
    write_coco(tmp_path, SMALL, train=3, val=2)
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(tmp_path / "annotations" / "instances_val2017.json"))
    for number, index in enumerate((3, 4)):  # validation continues where training ends
        scene, image = make_scene(SMALL, index), coco.loadImgs(coco.getImgIds())[number]
        annotations = coco.loadAnns(coco.getAnnIds(image["id"]))
        assert len(annotations) == len(scene.instances)
        for annotation, instance in zip(annotations, scene.instances, strict=True):
            assert np.array_equal(coco.annToMask(annotation), instance.mask)
            assert annotation["area"] == instance.mask.sum()
            x, y, w, h = annotation["bbox"]
            inside = instance.mask[y : y + h, x : x + w]
            assert inside.sum() == instance.mask.sum()
            assert all(rim.any() for rim in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))  # the box is tight
            assert annotation["iscrowd"] == instance.is_crowd
        pil_image = np.asarray(Image.open(tmp_path / "val2017" / image["file_name"])).astype(int)
        assert np.abs(pil_image - scene.image).mean() < 16  # JPEG, which blurs colours


def test_ade20k_has_exact_labels(tmp_path: Path) -> None:
    write_ade20k(tmp_path, SMALL, train=2, val=1)
    labels = np.asarray(Image.open(tmp_path / "annotations" / "validation" / "ADE_val_00000001.png"))
    assert np.array_equal(labels, make_scene(SMALL, 2).labels())
    assert (tmp_path / "images" / "training" / "ADE_train_00000002.jpg").is_file()
    rows = (tmp_path / "objectInfo150.txt").read_text().splitlines()
    assert rows[0].split("\t")[-1] == "Name"
    assert [row.split("\t")[-1] for row in rows[1:]] == ["ground", *SHAPES]


def test_parquet_is_read_by_the_classifier(tmp_path: Path) -> None:
    write_parquet(tmp_path / "scenes", SMALL, train=3, val=2)
    source = Parquet(tmp_path / "scenes", "validation", tmp_path / "cache")
    assert source.classes == tuple(SHAPES)
    assert source.read(1).size == (64, 64)
    largest = max((i for i in make_scene(SMALL, 4).instances if not i.is_crowd), key=lambda i: i.mask.sum())
    assert source.labels.tolist()[1] == largest.label


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "scenes"
    args = ["scenes", str(out), "--count", "2", "--val", "1", "--size-px", "48", "--seed", "7"]
    assert tailprop_cli.main(args) == 0
    assert len(list((out / "train2017").iterdir())) == 2
    image = next((out / "train2017").iterdir())
    image.unlink()  # as after an interruption
    assert tailprop_cli.main(args) == 0
    assert image.is_file()
    assert tailprop_cli.main([*args[:2], "--count", "3"]) == 2
    assert "generated with other settings" in capsys.readouterr().err
    assert tailprop_cli.main(["scenes", str(tmp_path)]) == 2
    assert "does not hold generated scenes; give a new folder" in capsys.readouterr().err
    assert tailprop_cli.main(["scenes", str(tmp_path / "new"), "--objects", "3", "2"]) == 2
    assert "the minimum and maximum number of shapes" in capsys.readouterr().err


def test_scenes_are_generated_once(tmp_path: Path) -> None:
    ensure_coco(tmp_path / "s", SMALL, 2, 1)
    made = (tmp_path / "s" / "annotations" / "instances_train2017.json").stat().st_mtime_ns
    ensure_coco(tmp_path / "s", SMALL, 2, 1)
    assert (tmp_path / "s" / "annotations" / "instances_train2017.json").stat().st_mtime_ns == made
    with pytest.raises(ValueError, match="generated with other settings"):
        ensure_coco(tmp_path / "s", SMALL, 3, 1)


def test_scenes_never_overwrite_other_files(tmp_path: Path) -> None:
    theirs = tmp_path / "annotations" / "instances_train2017.json"
    theirs.parent.mkdir()
    theirs.write_text("years of work")
    with pytest.raises(ValueError, match=r"does not hold generated scenes; .* another --data.source"):
        ensure_coco(tmp_path, SMALL, 2, 1)
    with pytest.raises(ValueError, match="does not hold generated scenes"):
        write_scenes(tmp_path, "coco", SMALL, 2, 1)
    assert theirs.read_text() == "years of work"
    (tmp_path / "scenes.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"scenes.json is corrupt"):
        ensure_coco(tmp_path, SMALL, 2, 1)


def test_interrupted_generation_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(config: SceneConfig, index: int) -> Scene:
        if index == 2:
            raise KeyboardInterrupt
        return make_scene(config, index)

    with monkeypatch.context() as patch:
        patch.setattr(scenes, "make_scene", stop)
        with pytest.raises(KeyboardInterrupt):
            ensure_coco(tmp_path / "s", SMALL, 2, 1)
    with pytest.raises(ValueError, match="generated with other settings"):
        ensure_coco(tmp_path / "s", SMALL, 3, 1)
    ensure_coco(tmp_path / "s", SMALL, 2, 1)
    assert (tmp_path / "s" / "annotations" / "instances_val2017.json").is_file()


def test_training_uses_the_scenes_of_the_command(tmp_path: Path) -> None:
    args = ["scenes", str(tmp_path / "s"), "--count", "2", "--val", "1", "--size-px", "48"]
    assert tailprop_cli.main(args) == 0
    made = (tmp_path / "s" / "annotations" / "instances_train2017.json").stat().st_mtime_ns
    ensure_coco(tmp_path / "s", SceneConfig(size_px=48), 2, 1)
    assert (tmp_path / "s" / "annotations" / "instances_train2017.json").stat().st_mtime_ns == made
    with pytest.raises(ValueError, match="generated with other settings"):
        ensure_ade20k(tmp_path / "s", SceneConfig(size_px=48), 2, 1)
