"""Box and mask AP as COCO defines them: results in its format, and its twelve metrics for each."""

import contextlib
import copy
import io
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tailprop.data.formats.coco import encode_mask

__all__ = ["METRICS", "kinds_of", "score_results", "to_results"]

# COCO's metrics in its order: AP over IoU 0.50 to 0.95, at 0.50 and 0.75, by object size; then AR with 1, 10 and 100 objects
NAMES: Final = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
RECALLS: Final = ("ar1", "ar10", "ar100", "ar_small", "ar_medium", "ar_large")
KINDS: Final = {"box": "bbox", "mask": "segm"}
METRICS: Final = tuple(f"{kind}_{name}" for kind in KINDS for name in (*NAMES, *RECALLS))


def kinds_of(has_masks: bool) -> tuple[str, ...]:
    """What is measured: boxes, and masks where there are any."""
    return tuple(KINDS) if has_masks else ("box",)


def to_results(image_id: int, found: dict[str, Tensor], category_ids: Sequence[int | None]) -> list[dict[str, Any]]:
    """The detections in an image as entries of a results file; labels without a category are skipped."""
    boxes = found["boxes"].float().cpu()
    boxes = torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], dim=1).double()  # x, y, width, height
    masks = (found["masks"][:, 0] >= 0.5).cpu().numpy() if "masks" in found else [None] * len(boxes)
    entries = []
    for box, label, score, mask in zip(boxes.tolist(), found["labels"].tolist(), found["scores"].tolist(), masks, strict=True):
        if (category := category_ids[label - 1]) is None:
            continue
        entry = dict(image_id=image_id, category_id=category, bbox=[round(v, 3) for v in box], score=score)
        entries.append(entry if mask is None else entry | dict(segmentation=encode_mask(mask)))
    return entries


def score_results(
    truth: dict[str, Any], results: Sequence[dict[str, Any]], kinds: Iterable[str] = tuple(KINDS)
) -> dict[str, float]:
    """The twelve metrics of each kind, in per cent; -100 (COCO's -1) for a size of which there are no objects.

    Args:
        truth: Content of an annotation file.
        results: Entries of a results file.
        kinds: box, mask or both.
    """
    from faster_coco_eval import COCO, COCOeval_faster

    scores: dict[str, float] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO(copy.deepcopy(truth))  # COCO modifies its argument
        for kind in kinds:
            evaluation = COCOeval_faster(known, known.loadRes(_of_kind(results, kind)), KINDS[kind])
            evaluation.run()
            numbers = np.asarray(evaluation.stats[:12], dtype=float)
            scores |= {f"{kind}_{name}": 100 * float(n) for name, n in zip((*NAMES, *RECALLS), numbers, strict=True)}
    return scores


def _of_kind(results: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """A copy that the evaluator may modify. For masks the boxes are removed, or sizes would be measured by box area."""
    dropped = "bbox" if kind == "mask" else None
    return copy.deepcopy([{name: value for name, value in entry.items() if name != dropped} for entry in results])
