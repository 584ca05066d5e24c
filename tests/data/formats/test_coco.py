"""Annotations that would read other files, or take forever."""

import json
from pathlib import Path

import pytest

from tailprop.data.formats.coco import decode_counts, read_coco
from tailprop.data.shapes.render import SceneConfig
from tailprop.data.shapes.write import write_coco


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/hostname", "a/../../b.jpg"])
def test_file_name_that_leaves_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    write_coco(tmp_path / "data", SceneConfig(size_px=64), 2, 1)
    path = tmp_path / "data" / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    (tmp_path / "data" / "secret.jpg").write_bytes(
        (tmp_path / "data" / "train2017" / content["images"][0]["file_name"]).read_bytes()
    )
    content["images"][0]["file_name"] = name
    path.write_text(json.dumps(content))
    found = read_coco(path, tmp_path / "data" / "train2017")
    assert len(found.images) == 1
    assert "its file_name leaves the image folder" in str(found.broken[0])


def test_long_numbers_of_a_mask_are_refused_at_once() -> None:
    assert decode_counts("o" * 20 + "0") is None  # a whole number of 105 bits
    assert decode_counts("o" * 1_000_000) is None


@pytest.mark.parametrize("number", [2**53 + 2, 10**400, 1e300])
def test_ids_that_other_programs_cannot_tell_apart_are_refused(number: float, tmp_path: Path) -> None:
    write_coco(tmp_path / "data", SceneConfig(size_px=64), 2, 1)
    path = tmp_path / "data" / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    content["images"][0]["id"] = number
    path.write_text(json.dumps(content))
    found = read_coco(path, tmp_path / "data" / "train2017")
    assert len(found.images) == 1
    assert "not an integer" in str(found.broken[0])
