"""Semantic segmentation: settings, model, batches, loss and mean intersection over union."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tailprop.backbone.cost import count_parameters
from tailprop.data.broken import Broken, Damage, require_full
from tailprop.data.formats.label_maps import IGNORE, LabelSet, ade20k_classes, read_pair
from tailprop.data.loader import make_loader, to_device
from tailprop.data.samplers import EvalOrder, TrainOrder
from tailprop.engine.config import ModelConfig, OptimConfig, RunConfig
from tailprop.runtime.distributed import World, gather, sum_over_processes
from tailprop.tasks.common.figures import draw_learning
from tailprop.tasks.common.models import check_model
from tailprop.tasks.common.pages import draw_page
from tailprop.tasks.segment.data import (
    Augment,
    SegmentAugmentConfig,
    SegmentBatch,
    SegmentDataConfig,
    Segments,
    collate,
    normalise,
    open_labelled,
)
from tailprop.tasks.segment.draw import draw_labels, stack_legend
from tailprop.tasks.segment.inference import InferenceConfig, label_picture
from tailprop.tasks.segment.metrics import LabelScores, confusion, score_confusion
from tailprop.tasks.segment.model import Segmenter, SegmenterConfig, create_segmenter, segmenter_macs

PICTURES_DRAWN = 8  # of the validation set, when a run ends
__all__ = ["SegmentConfig", "Segmentation", "evaluate_segmenter"]


@dataclass(frozen=True)
class SegmentConfig:
    """Train UPerNet."""

    task: Literal["segment"] = "segment"
    """What is trained."""
    paper_miou: Annotated[dict[str, float], tyro.conf.Suppress] = field(default_factory=dict)
    """The paper's mean IoU by model, to stand beside ours."""
    model: ModelConfig = field(default_factory=ModelConfig)
    segmenter: SegmenterConfig = field(default_factory=SegmenterConfig)
    data: SegmentDataConfig = field(default_factory=SegmentDataConfig)
    augment: SegmentAugmentConfig = field(default_factory=SegmentAugmentConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def check(self) -> None:
        check_model(self.model.name)
        if self.model.in_chans != 3:
            raise ValueError(f"a segmenter takes pictures of 3 channels, model.in_chans is {self.model.in_chans}")
        for section in (self.segmenter, self.data, self.augment, self.inference, self.optim, self.run):
            section.check()


class Segmentation:
    """The task, for one process."""

    metric = "miou"

    def __init__(self, config: SegmentConfig, world: World) -> None:
        self.config, self.world = config, world
        data, optim = config.data, config.optim
        check_batch(optim.batch, world)
        self.broken = Damage(config.data.on_broken, world.is_first)
        train, validation = open_labelled(data, "train", world), open_labelled(data, "validation", world)
        for part in (train, validation):
            self.broken.note(part.broken, shared=True)
        train.pairs = train.pairs[: data.limit]
        self.sets = {"train": train, "validation": validation}
        self.classes = train.classes
        self.order = TrainOrder(
            len(train.pairs), optim.batch, config.run.seed, world, optim.accumulate, optim.epochs, optim.epoch_steps
        )
        pictures = Segments(train, Augment(config.augment, data.short_px, data.long_px))
        self.train_loader = make_loader(pictures, self.order, collate, data.workers, world.device)
        self.eval_loader = eval_loader(validation, data.workers, world)
        self.shown: dict[int, Tensor] = {}

    def build_model(self, resumed: bool = False) -> nn.Module:
        config = replace(self.config.model, init=None) if resumed else self.config.model
        model, taken = create_segmenter(config, len(self.classes), self.config.segmenter)
        if taken is not None and self.world.is_first:
            print(taken)
        return model

    def batches(self, epoch: int, step: int) -> Iterable[SegmentBatch]:
        """The batches of this process in an epoch, from an optimizer step on."""
        self.order.begin(epoch, step)
        return self.train_loader

    def loss(self, model: nn.Module, batch: SegmentBatch) -> Tensor:
        self.broken.note(batch.broken)
        require_full(batch, self.config.optim.batch)
        images = normalise(to_device(torch.stack(batch.images), self.world.device))
        labels = to_device(torch.stack(batch.labels), self.world.device).long()
        logits = model(images)
        if isinstance(logits, Tensor):
            return pixel_loss(logits, labels)
        return pixel_loss(logits[0], labels) + self.config.segmenter.aux_weight * pixel_loss(logits[1], labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        data, self.shown = self.config.data, {}

        def label(image: Tensor) -> Tensor:
            return label_picture(model, image, self.config.inference, data.short_px, data.long_px)

        found = evaluate_segmenter(label, self.eval_loader, len(self.classes), self.world.device, self.broken.note, self._show)
        return found[0].numbers()

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """What the manifest says of this task."""
        assert isinstance(model, Segmenter)
        side = self.config.augment.crop_px
        return {
            "classes": len(self.classes),
            "examples": {name: len(part.pairs) for name, part in self.sets.items()},
            "split_hash": {name: part.fingerprint() for name, part in self.sets.items()},
            "parameters": count_parameters(model),
            "macs": segmenter_macs(model, side, side),
        }

    def metadata(self) -> dict[str, str]:
        """What the exported weights say of themselves."""
        return {
            "task": "segment",
            "architecture": self.config.model.name,
            "classes": "\n".join(self.classes),
            "first_label": str(self.sets["train"].first_label),
        }

    def draw(self, history: list[dict[str, float]], folder: Path) -> None:
        draw_learning(history, folder / "learning.png", {"miou": "mean IoU, %", "pixel_accuracy": "pixels right, %"})
        validation, tiles, seen = self.sets["validation"], [], np.zeros(len(self.classes), dtype=np.int64)
        for index, predicted in self.shown.items():
            read = read_pair(validation.pairs[index], len(self.classes), validation.first_label)
            assert not isinstance(read, Broken)  # it was read when it was evaluated
            found = predicted.numpy()
            for labels in (read[1][read[1] != IGNORE], found.ravel()):
                seen += np.bincount(labels, minlength=len(seen))
            tiles += [read[0], draw_labels(read[0], read[1]), draw_labels(read[0], found)]
        if tiles:  # picture, truth and answer side by side
            draw_page(tiles, folder / "pictures.jpg", columns=6 if len(tiles) > 3 else 3, width_px=210)
            stack_legend(folder / "pictures.jpg", seen, self.classes)

    def summary(self, best: dict[str, float]) -> str:
        paper = papers_miou(self.config, self.classes, len(self.sets["validation"].pairs))
        return f"mean IoU {best['miou']:.2f}{paper}, pixels right {best['pixel_accuracy']:.2f} %"

    def _show(self, index: int, predicted: Tensor) -> None:
        if len(self.shown) < PICTURES_DRAWN:
            self.shown[index] = predicted


def papers_miou(config: SegmentConfig, classes: Sequence[str], pictures: int) -> str:
    """The paper's number in words, where it is for this model, for ADE20K's classes and for as many pictures."""
    are_ade20ks = pictures == 2000 and tuple(name.split(",")[0] for name in classes) == ade20k_classes().names
    number = config.paper_miou.get(config.model.name) if are_ade20ks else None
    return "" if number is None else f" (the paper, on ADE20K's 2,000 validation pictures: {number:.1f})"


def check_batch(batch: int, world: World) -> None:
    """The decoder pools a picture to a single pixel, and batch norm needs two of them."""
    synchronised = world.device.type == "cuda" and world.size > 1
    if batch * (world.size if synchronised else 1) < 2:
        raise ValueError("UPerNet's batch norm needs two pictures at once in training; set --optim.batch to 2 or more")


def pixel_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy, averaged over all pixels, ignored ones as zeros.

    So every process's loss weighs the same as in one big batch, and a picture nobody labelled is no division by zero.
    """
    return F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum") / labels.numel()


def eval_loader(part: LabelSet, workers: int, world: World, order: Sequence[int] | None = None) -> DataLoader[Any]:
    """Pictures one at a time, at their own sizes."""
    return make_loader(Segments(part, order=order), EvalOrder(len(part.pairs), 1, world), collate, workers, world.device)


@torch.inference_mode()
def evaluate_segmenter(
    label: Callable[[Tensor], Tensor],
    batches: Iterable[SegmentBatch],
    num_classes: int,
    device: torch.device,
    note: Callable[[Sequence[Broken]], object] = lambda _broken: None,
    show: Callable[[int, Tensor], object] = lambda _index, _labels: None,
    classes: Sequence[int] | None = None,
) -> tuple[LabelScores, list[Broken]]:
    """The scores over the pictures of all processes, and what could not be read.

    Args:
        label: A picture on the device, (3, H, W) in bytes, to the class of every pixel.
        note: Told what could not be read, when it is met; it may raise.
        show: Told the place of each picture in the set, and what was predicted.
        classes: Those the labels know, if they are fewer than the model's.
    """
    counts = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    broken: list[Broken] = []
    for batch in batches:
        note(batch.broken)
        broken += batch.broken
        for image, labels, index in zip(batch.images, batch.labels, batch.indices, strict=True):
            predicted = label(to_device(image, device))
            counts += confusion(to_device(labels, device), predicted, num_classes).cpu()
            show(index, predicted.to("cpu", torch.int16))
    everything = sum_over_processes(counts, device)  # whole numbers: exact in any order
    broken = [item for share in gather(broken) for item in share]
    if broken and not everything.any():
        raise ValueError(f"no labelled pixel could be evaluated; the first of {len(broken)} broken: {broken[0]}")
    return score_confusion(everything, classes), broken
