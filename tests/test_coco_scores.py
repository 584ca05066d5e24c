"""COCO's numbers, against pycocotools."""

import contextlib
import copy
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tailprop.coco_scores import METRICS, score_results, to_results
from tailprop.data.coco import CocoSet, decode_masks
from tailprop.data.scenes import encode_mask, write_coco
from tailprop.data.synthetic import SceneConfig
from tests.detecting import validation_set


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


def test_the_truth_scores_full_and_another_pictures_truth_nothing(scenes: Path) -> None:
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


@pytest.mark.parametrize("seed", [0, 1])
def test_all_numbers_are_pycocotools(scenes: Path, seed: int) -> None:
    part = validation_set(scenes)
    truth, results = part.ground_truth(), disturbed(perfect(part), random.Random(seed))
    before = json.dumps(results)
    ours = score_results(truth, results)
    assert json.dumps(results) == before  # the file written afterwards is what was scored
    theirs: list[float] = []
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = copy.deepcopy(truth)
        known.createIndex()
        for kind in ("bbox", "segm"):
            evaluation = COCOeval(known, known.loadRes(json.loads(before)), kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            theirs += list(evaluation.stats)
    assert 5 < ours["box_ap"] < 95
    assert list(ours.values()) == pytest.approx([100 * n for n in theirs], abs=1e-6)


def test_results_are_in_cocos_format() -> None:
    masks = torch.zeros(1, 1, 20, 30)
    masks[0, 0, 5:10, 4:12] = 0.9
    found = dict(boxes=torch.tensor([[4.0, 5, 12, 10]]), labels=torch.tensor([2]), scores=torch.tensor([0.75]), masks=masks)
    (entry,) = json.loads(json.dumps(to_results(7, found, [3, 18])))
    assert entry["bbox"] == [4, 5, 8, 5]
    assert (entry["image_id"], entry["category_id"], entry["score"]) == (7, 18, 0.75)
    assert decode_masks([entry], 30, 20)[0, 5:10, 4:12].all()
