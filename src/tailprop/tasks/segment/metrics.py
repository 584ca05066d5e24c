"""Intersection over union from the exact confusion matrix of all labelled pixels of all processes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tailprop.data.formats.label_maps import IGNORE

__all__ = ["LabelScores", "confusion", "score_confusion"]


@dataclass(frozen=True)
class LabelScores:
    """Scores of a segmenter, in per cent. A class that is neither labelled nor predicted has no score and does not count."""

    miou: float
    pixel_accuracy: float
    class_accuracy: float  # mean over the labelled classes
    iou: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]  # share of each class's labelled pixels that are predicted correctly

    def numbers(self) -> dict[str, float]:
        return dict(miou=self.miou, pixel_accuracy=self.pixel_accuracy, class_accuracy=self.class_accuracy)


def confusion(labels: Tensor, predicted: Tensor, num_classes: int) -> Tensor:
    """`[true, predicted]` counts pixels; those labelled IGNORE do not count. (H, W), (H, W) -> (K, K)"""
    counted = labels != IGNORE
    pairs = labels[counted].long() * num_classes + predicted[counted].long()
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def score_confusion(counts: Tensor, classes: Sequence[int] | None = None) -> LabelScores:
    """The scores of a confusion matrix, (K, K) integers.

    Args:
        classes: Class indices of the dataset, if it has fewer classes than the model; the means are over these only.
    """
    counts = counts.double()  # exact up to 2^53 pixels
    right, labelled, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    if labelled.sum() == 0:
        raise ValueError("no labelled pixel could be evaluated")
    union = labelled + predicted - right
    if classes is not None:
        known = torch.zeros(len(counts), dtype=torch.bool)
        known[list(classes)] = True
        union = torch.where(known, union, 0.0)
    iou, accuracy = 100 * right / union, 100 * right / labelled  # 0 / 0 = NaN for classes without pixels
    return LabelScores(
        miou=iou[union > 0].mean().item(),
        pixel_accuracy=(100 * right.sum() / labelled.sum()).item(),
        class_accuracy=accuracy[labelled > 0].mean().item(),
        iou=_or_none(iou),
        accuracy=_or_none(accuracy),
    )


def _or_none(values: Tensor) -> tuple[float | None, ...]:
    return tuple(None if value != value else value for value in values.tolist())  # NaN is not equal to itself
