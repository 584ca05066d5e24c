"""Semantic segmentation: settings, model, batches, loss and mean intersection over union."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tailprop.backbone.cost import count_parameters
from tailprop.data.broken import Broken
from tailprop.data.formats.colors import ColorTable
from tailprop.data.formats.label_maps import IGNORE, LabelSet, ade20k_classes, read_pair
from tailprop.data.loader import create_loader, to_device
from tailprop.data.samplers import EvalSampler
from tailprop.runtime.distributed import World, all_gather, all_reduce_sum
from tailprop.tasks.common.figures import draw_learning, run_title
from tailprop.tasks.common.hub import backbone_config
from tailprop.tasks.common.pages import draw_page
from tailprop.tasks.common.task import BaseTask, create_train_sampler, data_summary
from tailprop.tasks.segment.config import (
    SegmentConfig,
)
from tailprop.tasks.segment.data import Augment, SegmentationDataset, SegmentBatch, collate, normalise, open_labelled
from tailprop.tasks.segment.draw import draw_labels, stack_legend
from tailprop.tasks.segment.inference import label_image
from tailprop.tasks.segment.metrics import LabelScores, confusion, score_confusion
from tailprop.tasks.segment.model import Segmenter, create_segmenter, segmenter_macs
from tailprop.utils.text import say_lines

IMAGES_DRAWN = 8  # validation images in predictions.jpg
__all__ = ["Segmentation", "evaluate_segmenter"]


class Segmentation(BaseTask[SegmentConfig]):
    """The segmentation task of one process."""

    def __init__(self, config: SegmentConfig, world: World) -> None:
        super().__init__(config, world, config.data.on_broken)
        data, optim = config.data, config.optim
        check_batch_norm(optim.batch_size, world)
        train, validation = open_labelled(data, "train", world), open_labelled(data, "validation", world)
        for part in (train, validation):
            self.broken.record(part.broken, shared=True)
        train.pairs = train.pairs[: data.limit]
        self.sets = {"train": train, "validation": validation}
        self.classes = train.classes
        self.sampler = create_train_sampler(len(train.pairs), optim, config.run.seed, world)
        dataset = SegmentationDataset(train, Augment(config.augment, data.short_px, data.long_px))
        self.train_loader = create_loader(dataset, self.sampler, collate, data.workers, world.device)
        self.eval_loader = eval_loader(validation, data.workers, world)
        self.drawn: dict[int, Tensor] = {}  # predictions to draw, by index

    def build_model(self, resumed: bool = False) -> nn.Module:
        model, report = create_segmenter(self.model_config(resumed), len(self.classes), self.config.segmenter)
        if report is not None and self.world.is_main:
            say_lines(report)
        return model

    def loss(self, model: nn.Module, batch: SegmentBatch) -> Tensor:
        self.check_batch(batch)
        images = normalise(to_device(torch.stack(batch.images), self.world.device))
        labels = to_device(torch.stack(batch.labels), self.world.device).long()
        logits = model(images)
        if isinstance(logits, Tensor):
            return pixel_loss(logits, labels)
        return pixel_loss(logits[0], labels) + self.config.segmenter.aux_weight * pixel_loss(logits[1], labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        data, self.drawn = self.config.data, {}
        losses = MeanLoss()

        def label(image: Tensor) -> Tensor:
            return label_image(model, image, self.config.inference, data.short_px, data.long_px, losses.keep)

        scores, _ = evaluate_segmenter(
            label,
            self.eval_loader,
            len(self.classes),
            self.world.device,
            self.broken.record,
            self._keep,
            on_labels=losses.add,
        )
        return scores.numbers() | {"val_loss": losses.mean(self.world.device)}

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """The entries of this task in the manifest."""
        assert isinstance(model, Segmenter)
        side = self.config.augment.crop_px
        return {
            "classes": len(self.classes),
            "examples": {name: len(part.pairs) for name, part in self.sets.items()},
            "split_hash": {name: part.fingerprint() for name, part in self.sets.items()},
            "parameters": count_parameters(model),
            "macs": segmenter_macs(model, side, side),
        }

    def data_summary(self) -> str:
        return data_summary(self.classes, {name: len(part.pairs) for name, part in self.sets.items()})

    def metadata(self) -> dict[str, str]:
        """The metadata of the exported weights."""
        return {
            "task": "segment",
            "architecture": self.config.model.name,
            "classes": "\n".join(self.classes),
            "first_label": str(self.sets["train"].first_label),
        } | write_colors(self.sets["train"].colors)

    def hub_config(self) -> dict[str, Any] | None:
        return backbone_config(self.config.model)

    def draw(self, history: list[dict[str, float]], folder: Path) -> None:
        metrics, title = {"miou": "mean IoU, %", "pixel_accuracy": "pixel accuracy, %"}, run_title(self.config, folder)
        draw_learning(history, folder / "learning.png", metrics, title=title)
        validation, tiles, counts = self.sets["validation"], [], np.zeros(len(self.classes), dtype=np.int64)
        for index, predicted in self.drawn.items():
            read = read_pair(validation.pairs[index], len(self.classes), validation.first_label, validation.colors)
            assert not isinstance(read, Broken)  # it was read when it was evaluated
            found = predicted.numpy()
            for labels in (read[1][read[1] != IGNORE], found.ravel()):
                counts += np.bincount(labels, minlength=len(counts))
            tiles += [read[0], draw_labels(read[0], read[1]), draw_labels(read[0], found)]
        if tiles:  # image, ground truth and prediction side by side
            headings, columns = ("image", "ground truth", "prediction"), 6 if len(tiles) > 3 else 3
            draw_page(tiles, folder / "predictions.jpg", columns, 210, headings, title)
            stack_legend(folder / "predictions.jpg", counts, self.classes)

    def summary(self, best: dict[str, float]) -> str:
        paper = papers_miou(self.config, self.classes, len(self.sets["validation"].pairs))
        return f"mean IoU {best['miou']:.2f}{paper}, pixel accuracy {best['pixel_accuracy']:.2f} %"

    def _keep(self, index: int, predicted: Tensor) -> None:
        if len(self.drawn) < IMAGES_DRAWN:
            self.drawn[index] = predicted


def papers_miou(config: SegmentConfig, classes: Sequence[str], images: int) -> str:
    """The paper's mean IoU for this model as text; empty if it has none or the data is not ADE20K's validation set."""
    is_ade20k = images == 2000 and tuple(name.split(",")[0] for name in classes) == ade20k_classes().names
    number = config.paper_miou.get(config.model.name) if is_ade20k else None
    return "" if number is None else f" (the paper, on ADE20K's 2,000 validation images: {number:.1f})"


def write_colors(colors: ColorTable | None) -> dict[str, str]:
    """The colours of the label maps as metadata."""
    return {} if colors is None else {"colors": json.dumps([colors.colors, colors.ignored])}


def check_batch_norm(batch_size: int, world: World) -> None:
    """Check the batch size: the decoder pools each image to a single pixel, and batch norm needs at least two."""
    synchronised = world.device.type == "cuda" and world.size > 1
    if batch_size * (world.size if synchronised else 1) < 2:
        raise ValueError("UPerNet's batch norm needs two images per batch in training; set --optim.batch-size to 2 or more")


def pixel_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy, averaged over all pixels; ignored pixels count as zero.

    So the losses of all processes are weighted as in one large batch, and an unlabelled image does not divide by zero.
    """
    return F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum") / labels.numel()


class MeanLoss:
    """The mean loss of evaluated images, at the size that the network sees and without the auxiliary head."""

    def __init__(self) -> None:
        self.logits: Tensor | None = None  # of the last image, (1, K, h, w)
        self.sums = torch.zeros(2, dtype=torch.float64)  # sum of the losses, number of images

    def keep(self, logits: Tensor) -> None:
        self.logits = logits

    def add(self, labels: Tensor) -> None:  # (H, W)
        assert self.logits is not None
        resized = F.interpolate(labels[None, None].float(), self.logits.shape[-2:], mode="nearest-exact")[:, 0].long()
        self.sums += torch.tensor([float(pixel_loss(self.logits, resized)), 1.0], dtype=torch.float64)
        self.logits = None

    def mean(self, device: torch.device) -> float:
        total, count = all_reduce_sum(self.sums, device).tolist()
        return total / count


def eval_loader(part: LabelSet, workers: int, world: World, order: Sequence[int] | None = None) -> DataLoader[Any]:
    """A loader with batches of one image at its original size."""
    return create_loader(
        SegmentationDataset(part, order=order), EvalSampler(len(part.pairs), 1, world), collate, workers, world.device
    )


@torch.inference_mode()
def evaluate_segmenter(
    label: Callable[[Tensor], Tensor],
    batches: Iterable[SegmentBatch],
    num_classes: int,
    device: torch.device,
    record: Callable[[Sequence[Broken]], object] = lambda _broken: None,
    on_predicted: Callable[[int, Tensor], object] = lambda _index, _labels: None,
    classes: Sequence[int] | None = None,
    on_labels: Callable[[Tensor], object] = lambda _labels: None,
) -> tuple[LabelScores, list[Broken]]:
    """The scores over the images of all processes, and the images that could not be read.

    Args:
        label: Predicts the class of every pixel of an image on the device, (3, H, W), uint8.
        record: Called with the broken images of each batch; it may raise.
        on_predicted: Called with the index of each image and its prediction.
        classes: Class indices of the dataset, if it has fewer classes than the model.
        on_labels: Called with the true labels of each image on the device, (H, W), after its prediction.
    """
    counts = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    broken: list[Broken] = []
    for batch in batches:
        record(batch.broken)
        broken += batch.broken
        for image, labels, index in zip(batch.images, batch.labels, batch.indices, strict=True):
            predicted, true = label(to_device(image, device)), to_device(labels, device)
            counts += confusion(true, predicted, num_classes).cpu()
            on_labels(true)
            on_predicted(index, predicted.to("cpu", torch.int16))
    total = all_reduce_sum(counts, device)  # integers: exact in any order
    broken = [item for share in all_gather(broken) for item in share]
    if broken and not total.any():
        raise ValueError(f"no labelled pixel could be evaluated; the first of {len(broken)} broken images: {broken[0]}")
    return score_confusion(total, classes), broken
