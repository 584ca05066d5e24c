"""Exact metrics: sums over all examples of all processes, each example counted once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailprop.data.classify import Batch
from tailprop.data.loading import Broken, to_device
from tailprop.distributed import gather, sum_over_processes

__all__ = ["Accuracy", "evaluate_classifier"]


@dataclass(frozen=True)
class Accuracy:
    """How a classifier did. `confusion[true, predicted]` counts examples."""

    top1: float  # per cent
    top5: float
    loss: float
    count: int
    confusion: Tensor
    broken: tuple[Broken, ...] = ()


def ignore(told: object) -> None:
    """For those who do not want to be told."""


@torch.inference_mode()
def evaluate_classifier(
    model: Callable[[Tensor], Tensor],
    batches: Iterable[Batch],
    num_classes: int,
    device: torch.device,
    subset: Tensor | None = None,
    tick: Callable[[int], object] = ignore,
    note: Callable[[Sequence[Broken]], object] = ignore,
) -> Accuracy:
    """Top-1, top-5, mean loss and confusion.

    Args:
        model: Images to logits; a module has to be in evaluation mode already.
        batches: This process's share of the examples.
        num_classes: Number of classes the labels come from.
        subset: The model's outputs that stand for those classes, where it has more (ImageNet-A: 200 of 1000).
        tick: Told the number of examples of each batch, for a progress bar.
        note: Told what could not be read, when it is met; it may raise.
    """
    if isinstance(model, nn.Module) and model.training:
        raise ValueError("the model is in training mode; call eval() first")
    sums = torch.zeros(4, dtype=torch.float64, device="cpu")  # right, right within five, loss, count
    confusion = torch.zeros(num_classes * num_classes, dtype=torch.int64)
    broken: list[Broken] = []
    for batch in batches:
        note(batch.broken)
        broken += batch.broken
        if len(batch) == 0:
            continue
        logits = model(to_device(batch.images, device)).float().cpu()
        logits = logits if subset is None else logits[:, subset]
        sums += _sums(logits, batch.labels)
        confusion += torch.bincount(batch.labels * num_classes + logits.argmax(1), minlength=num_classes**2)
        tick(len(batch))
    everything = sum_over_processes(torch.cat([sums, confusion.double()]), device)
    right, within5, loss, count = everything[:4].tolist()
    if count == 0:
        raise ValueError("no example could be evaluated")
    return Accuracy(
        top1=100 * right / count,
        top5=100 * within5 / count,
        loss=loss / count,
        count=int(count),
        confusion=everything[4:].long().reshape(num_classes, num_classes),
        broken=tuple(b for share in gather(broken) for b in share),
    )


def _sums(logits: Tensor, labels: Tensor) -> Tensor:
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices  # (B, 5)
    hits = best == labels[:, None]
    loss = F.cross_entropy(logits, labels, reduction="sum")
    return torch.stack([hits[:, 0].sum().double(), hits.sum().double(), loss.double(), torch.tensor(float(len(labels)))])
