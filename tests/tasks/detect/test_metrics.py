"""COCO metrics against pycocotools."""

import contextlib
import copy
import io
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tailprop.data.formats.coco import CocoSet, decode_masks, encode_mask
from tailprop.data.shapes.render import SceneConfig
from tailprop.data.shapes.write import write_coco
from tailprop.tasks.detect.metrics import METRICS, score_results, to_results
from tests.helpers.detecting import validation_set


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    write_coco(root, SceneConfig(size_px=64, crowd=0.3), 8, 6)
    return root


def perfect(part: CocoSet) -> list[dict[str, Any]]:
    results = []
    for image in part.images:
        objects = [a for a in image.objects if not a["iscrowd"]]
        for a, mask in zip(objects, decode_masks(objects, image.width, image.height), strict=True):
            entry = dict(image_id=image.id, category_id=a["category_id"], bbox=a["bbox"], score=1.0)
            results.append(entry | dict(segmentation=encode_mask(mask)))
    return results


def disturbed(results: list[dict[str, Any]], generator: random.Random) -> list[dict[str, Any]]:
    changed = []
    for entry in results * 2:
        if generator.random() < 0.8:
            x, y, w, h = entry["bbox"]
            box = [x + generator.gauss(0, 2), y + generator.gauss(0, 2), w * generator.uniform(0.8, 1.2), h]
            category = entry["category_id"] if generator.random() < 0.8 else 1
            changed.append(entry | dict(bbox=box, category_id=category, score=generator.random()))
    return changed


def test_ground_truth_scores_100_and_that_of_another_image_0(scenes: Path) -> None:
    part = validation_set(scenes)
    truth, results = part.ground_truth(), perfect(part)
    full = score_results(truth, results)
    assert list(full) == list(METRICS)
    assert full["box_ap"] == full["mask_ap"] == full["box_ar100"] == pytest.approx(100)
    ids = [image.id for image in part.images]
    moved = [entry | dict(image_id=ids[(ids.index(entry["image_id"]) + 1) % len(ids)]) for entry in results]
    assert score_results(truth, moved)["box_ap"] < 5
    assert score_results(truth, moved)["mask_ap"] < 5
    assert score_results(truth, [])["box_ap"] == 0


def as_pycocotools(truth: dict[str, Any], results: list[dict[str, Any]], kinds: Sequence[str]) -> list[float]:
    """The metrics of pycocotools; masks are passed without boxes, as by mmdetection and torchvision."""
    numbers: list[float] = []
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = copy.deepcopy(truth)
        known.createIndex()
        for kind in kinds:
            dropped = "bbox" if kind == "segm" else ""
            entries = [{name: v for name, v in entry.items() if name != dropped} for entry in copy.deepcopy(results)]
            evaluation = COCOeval(known, known.loadRes(entries), kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            numbers += list(evaluation.stats)
    return [100 * number for number in numbers]


@pytest.mark.parametrize("seed", [0, 1])
def test_all_metrics_match_pycocotools(scenes: Path, seed: int) -> None:
    part = validation_set(scenes)
    truth, results = part.ground_truth(), disturbed(perfect(part), random.Random(seed))
    before = json.dumps(results)
    ours = score_results(truth, results)
    assert json.dumps(results) == before  # scoring does not modify the results
    assert 5 < ours["box_ap"] < 95
    assert list(ours.values()) == pytest.approx(as_pycocotools(truth, results, ("bbox", "segm")), abs=1e-6)


def test_polygons_and_results_without_boxes_match_pycocotools(scenes: Path) -> None:
    part = validation_set(scenes)
    truth = part.ground_truth()
    for a in truth["annotations"][::2]:
        x, y, w, h = a["bbox"]
        a.update(segmentation=a["segmentation"] if a["iscrowd"] else [[x, y, x + w, y, x + w, y + h, x, y + h]])
    results = [{k: v for k, v in entry.items() if k != "bbox"} for entry in disturbed(perfect(part), random.Random(2))]
    ours = score_results(truth, results, kinds=["mask"])
    assert 5 < ours["mask_ap"] < 95
    assert list(ours.values()) == pytest.approx(as_pycocotools(truth, results, ["segm"]), abs=1e-6)


def test_masks_are_sorted_by_their_own_size() -> None:
    """A thin diagonal has a small mask and a large box: as a false positive it must not count as a medium object."""
    square, line = np.zeros((2, 100, 100), dtype=np.uint8)
    square[10:50, 10:50] = 1
    np.fill_diagonal(line[50:, 50:], 1)
    category = [dict(id=1, name="a")]
    images = [dict(id=1, width=100, height=100, file_name="a")]
    real = dict(image_id=1, category_id=1, bbox=[10, 10, 40, 40], segmentation=encode_mask(square))
    truth = dict(info={}, images=images, categories=category, annotations=[dict(real, id=1, area=1600, iscrowd=0)])
    wrong = dict(image_id=1, category_id=1, bbox=[50, 50, 50, 50], segmentation=encode_mask(line), score=0.9)
    scores = score_results(truth, [wrong, dict(real, score=0.5)])
    assert scores["mask_ap_medium"] == pytest.approx(100)
    assert scores["box_ap_medium"] < 60


def test_repeated_ids_and_id_0_do_not_change_the_score(scenes: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(scenes, root)
    path = root / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    for a in content["annotations"]:
        a["id"] = a["id"] % 3
    path.write_text(json.dumps(content))
    part = validation_set(root)
    scores = score_results(part.ground_truth(), perfect(part))
    assert scores["box_ap"] == scores["mask_ap"] == pytest.approx(100)


def test_labels_without_a_category_are_skipped() -> None:
    found = dict(boxes=torch.rand(3, 4), labels=torch.tensor([1, 2, 1]), scores=torch.rand(3))
    assert [entry["category_id"] for entry in to_results(1, found, [None, 7])] == [7]


def test_results_are_in_cocos_format() -> None:
    masks = torch.zeros(1, 1, 20, 30)
    masks[0, 0, 5:10, 4:12] = 0.9
    found = dict(boxes=torch.tensor([[4.0, 5, 12, 10]]), labels=torch.tensor([2]), scores=torch.tensor([0.75]), masks=masks)
    (entry,) = json.loads(json.dumps(to_results(7, found, [3, 18])))
    assert entry["bbox"] == [4, 5, 8, 5]
    assert (entry["image_id"], entry["category_id"], entry["score"]) == (7, 18, 0.75)
    assert decode_masks([entry], 30, 20)[0, 5:10, 4:12].all()
