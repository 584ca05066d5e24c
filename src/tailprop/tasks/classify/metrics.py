"""Exact metrics over the examples of all processes, each counted once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailprop.data.broken import Broken
from tailprop.data.loader import to_device
from tailprop.runtime.distributed import all_gather, all_reduce_sum
from tailprop.tasks.classify.data import Batch

__all__ = ["Accuracy", "ClassAccuracy", "evaluate_classifier"]


@dataclass(frozen=True)
class Accuracy:
    """Metrics of a classifier."""

    top1: float  # per cent
    top5: float  # per cent
    loss: float  # mean cross-entropy
    count: int  # evaluated examples
    answers: Tensor  # (count, 3): true class, predicted class and index in the dataset of each example
    confidence: Tensor  # (count,): the probability of the predicted class
    num_classes: int
    broken: tuple[Broken, ...] = ()  # examples that could not be read

    @property
    def confusion(self) -> Tensor:
        """Counts by [true, predicted], computed on demand: for 20,000 classes it would take gigabytes."""
        n = self.num_classes
        return torch.bincount(self.answers[:, 0] * n + self.answers[:, 1], minlength=n * n).reshape(n, n)

    @property
    def by_class(self) -> list["ClassAccuracy"]:
        """Precision and recall of each class."""
        true, predicted = (torch.bincount(self.answers[:, column], minlength=self.num_classes) for column in (0, 1))
        correct = torch.bincount(self.answers[self.answers[:, 0] == self.answers[:, 1], 0], minlength=self.num_classes)
        rows = zip(correct.tolist(), true.tolist(), predicted.tolist(), strict=True)
        return [ClassAccuracy(n, 100 * k / p if p else None, 100 * k / n if n else None) for k, n, p in rows]

    def worst_mistakes(self, count: int) -> Tensor:
        """Wrong rows of `answers`, most confident first."""
        wrong = (self.answers[:, 0] != self.answers[:, 1]).nonzero().flatten()
        return wrong[self.confidence[wrong].argsort(descending=True, stable=True)][:count]


@dataclass(frozen=True)
class ClassAccuracy:
    """Metrics of one class in per cent; None if there is nothing to count."""

    count: int  # examples of the class
    precision: float | None  # correct predictions over all predictions of the class
    recall: float | None  # correct predictions over all examples of the class


def ignore(_value: object) -> None:
    """A callback that does nothing."""


@torch.inference_mode()
def evaluate_classifier(
    model: Callable[[Tensor], Tensor],
    batches: Iterable[Batch],
    num_classes: int,
    device: torch.device,
    subset: Tensor | None = None,
    tick: Callable[[int], object] = ignore,
    record: Callable[[Sequence[Broken]], object] = ignore,
) -> Accuracy:
    """Top-1, top-5, mean loss and the predictions.

    Args:
        model: Maps images to logits; a module must be in evaluation mode.
        batches: This process's share of the examples.
        num_classes: Number of classes of the labels.
        subset: The model's outputs for these classes, if it has more (ImageNet-A: 200 of 1000).
        tick: Called with the number of examples of each batch, for a progress bar.
        record: Called with broken files as they are found; may raise.
    """
    if isinstance(model, nn.Module) and model.training:
        raise ValueError("the model is in training mode; call eval() first")
    sums = torch.zeros(4, dtype=torch.float64, device="cpu")  # top-1 correct, top-5 correct, loss, count
    answers: list[Tensor] = []
    confidence: list[Tensor] = []
    broken: list[Broken] = []
    for batch in batches:
        record(batch.broken)
        broken += batch.broken
        if len(batch) == 0:
            continue
        logits = model(to_device(batch.images, device)).float().cpu()
        logits = logits if subset is None else logits[:, subset]
        sums += _sums(logits, batch.labels)
        predicted = logits.argmax(1)
        indices = torch.tensor(batch.seeds or [-1] * len(batch))  # in evaluation, a seed is the index in the dataset
        answers.append(torch.stack([batch.labels, predicted, indices], dim=1))
        confidence.append(logits.softmax(1).gather(1, predicted[:, None])[:, 0])
        tick(len(batch))
    correct, correct5, loss, count = all_reduce_sum(sums, device).tolist()
    if count == 0:
        raise ValueError("no example could be evaluated")
    return Accuracy(
        top1=100 * correct / count,
        top5=100 * correct5 / count,
        loss=loss / count,
        count=int(count),
        answers=torch.cat([part for share in all_gather(answers) for part in share]),
        confidence=torch.cat([part for share in all_gather(confidence) for part in share]),
        num_classes=num_classes,
        broken=tuple(b for share in all_gather(broken) for b in share),
    )


def _sums(logits: Tensor, labels: Tensor) -> Tensor:
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices  # (B, 5)
    hits = best == labels[:, None]
    loss = F.cross_entropy(logits, labels, reduction="sum")
    return torch.stack([hits[:, 0].sum().double(), hits.sum().double(), loss.double(), torch.tensor(float(len(labels)))])
