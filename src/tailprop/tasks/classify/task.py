"""Classification: settings, model, batches, loss and metrics."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch.nn.functional as F
import tyro
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn

import tailprop.backbone.model  # noqa: F401 - registers the models
from tailprop.backbone.cost import count_macs, count_parameters
from tailprop.data.broken import Damage, require_full
from tailprop.data.loader import make_loader, to_device
from tailprop.data.samplers import EvalOrder, TrainOrder
from tailprop.engine.config import ModelConfig, OptimConfig, RunConfig
from tailprop.runtime.distributed import World, one_first, say_once
from tailprop.tasks.classify.augment import AugmentConfig, Finish, eval_transform, train_transforms
from tailprop.tasks.classify.data import Batch, DataConfig, Pictures, collate, open_source
from tailprop.tasks.classify.figures import CONFUSION_CLASSES, draw_confusion
from tailprop.tasks.classify.metrics import Accuracy, evaluate_classifier
from tailprop.tasks.classify.model import create_model
from tailprop.tasks.classify.sources import check_labels, check_same_classes, split_hash
from tailprop.tasks.common.figures import draw_learning
from tailprop.tasks.common.models import check_model
from tailprop.utils.errors import memory_missing

__all__ = ["Classification", "ClassifyConfig"]


@dataclass(frozen=True)
class ClassifyConfig:
    """Train a classifier."""

    task: Literal["classify"] = "classify"
    """What is trained."""
    paper_top1: Annotated[dict[str, float], tyro.conf.Suppress] = field(default_factory=dict)
    """The paper's number for a model of this recipe, to stand beside ours."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def check(self) -> None:
        check_model(self.model.name)
        self.data.check()
        self.augment.check()
        self.optim.check()
        self.run.check()
        if (self.augment.mixup > 0 or self.augment.cutmix > 0) and self.optim.batch % 2:
            raise ValueError(f"mixup and CutMix need an even --optim.batch, got {self.optim.batch}")
        if self.augment.auto_augment is not None and self.model.in_chans == 4:
            raise ValueError("RandAugment knows no transparency: model.in_chans 4 needs --augment.auto-augment None")


class Classification:
    """The task, for one process."""

    metric = "top1"

    def __init__(self, config: ClassifyConfig, world: World) -> None:
        self.config, self.world = config, world
        data, in_chans = config.data, config.model.in_chans
        mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(in_chans)
        if mode is None:
            raise ValueError(f"pictures have 1, 3 or 4 channels, model.in_chans is {in_chans}")
        train, validation = (one_first(partial(open_source, data, split), data.download) for split in ("train", "validation"))
        self.classes = train.classes
        self.num_classes = data.num_classes or len(train.classes)
        if len(train.classes) < 2 and data.num_classes is None:
            raise ValueError(
                f"there is a single class, {', '.join(train.classes)}: nothing to tell apart; of folders, --data.root is "
                "the one that holds a folder for each class"
            )
        check_same_classes(train, validation)
        if self.num_classes > len(train.classes):
            say_once(f"--data.num-classes is {self.num_classes}, the data has {len(train.classes)}: the others stay unlearned")
        advice = " or set --data.num-classes"
        check_labels(train, self.num_classes, "train", advice)
        check_labels(validation, self.num_classes, "validation", advice)
        self.sources = {"train": train, "validation": validation}
        optim = config.optim
        self.order = TrainOrder(
            len(train.labels), optim.batch, config.run.seed, world, optim.accumulate, optim.epochs, optim.epoch_steps
        )
        transforms = train_transforms(data, config.augment, in_chans)
        each = data.keep_gb / max(1, data.workers) / (len(train.labels) + len(validation.labels))  # of the pictures
        pictures = Pictures(train, transforms, mode, replace_broken=True, keep_gb=each * len(train.labels))
        held_out = Pictures(
            validation, [eval_transform(data, config.augment, in_chans)], mode, keep_gb=each * len(validation.labels)
        )
        eval_order = EvalOrder(len(validation.labels), optim.batch, world)
        self.train_loader = make_loader(pictures, self.order, collate, data.workers, world.device)
        self.eval_loader = make_loader(held_out, eval_order, collate, data.workers, world.device)
        self.finish = Finish(config.augment, in_chans, world.device)
        self.mixup = _mixup(config.augment, self.num_classes)
        self.broken = Damage(config.data.on_broken, world.is_first)
        self.best: Accuracy | None = None  # of the epochs since the start, or since the run was resumed

    def build_model(self, resumed: bool = False) -> nn.Module:
        config = dataclasses.replace(self.config.model, init=None) if resumed else self.config.model
        return create_model(config, self.num_classes, report=self.world.is_first and not resumed)

    def batches(self, epoch: int, step: int) -> Iterable[Batch]:
        """The batches of this process in an epoch, from an optimizer step on."""
        self.order.begin(epoch, step)
        return self.train_loader

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.broken.note(batch.broken)
        require_full(batch, self.config.optim.batch)
        images = self.finish(to_device(batch.images, self.world.device), batch.seeds)
        labels = to_device(batch.labels, self.world.device)
        if self.mixup is None:
            return F.cross_entropy(model(images), labels, label_smoothing=self.config.augment.smoothing)
        images, soft = self.mixup(images, labels)
        return SoftTargetCrossEntropy()(model(images), soft)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        result = evaluate_classifier(model, self.eval_loader, self.num_classes, self.world.device, note=self.broken.note)
        if self.best is None or result.top1 > self.best.top1:  # as the loop chooses the weights it exports
            self.best = result
        return {"top1": result.top1, "top5": result.top5, "val_loss": result.loss}

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """What the manifest says of this task."""
        size, others = self.config.data.size_px, set(self.config.data.train_px)
        for other in others - {size}:
            self._count_macs(model.eval(), other, "--data.train-px")
        return {
            "classes": len(self.classes),
            "examples": {name: len(source.labels) for name, source in self.sources.items()},
            "split_hash": {name: split_hash(source) for name, source in self.sources.items()},
            "parameters": count_parameters(model),
            "macs": self._count_macs(model.eval(), size),
        }

    def _count_macs(self, model: nn.Module, size: int, option: str = "--data.size-px") -> int:
        try:
            return count_macs(model, size, size)
        except (AssertionError, RuntimeError) as error:  # transformers of a fixed size refuse others
            if memory_missing(error):
                raise
            name, reason = self.config.model.name, str(error).splitlines()[0]
            raise ValueError(
                f"{name} does not take pictures of {size} px: {reason} Change {option}, or in a recipe set "
                "model: {args: {img_size: ...}}"
            ) from None

    def metadata(self) -> dict[str, str]:
        """What the exported weights say of themselves."""
        return {
            "architecture": self.config.model.name,
            "num_classes": str(self.num_classes),
            "classes": "\n".join((*self.classes, *map(str, range(len(self.classes), self.num_classes)))),
        }

    def draw(self, history: list[dict[str, float]], folder: Path) -> None:
        draw_learning(history, folder / "learning.png", {"top1": "top-1, %"})
        if self.best is None or self.num_classes > CONFUSION_CLASSES:
            return
        if self.best.top1 < max(row["top1"] for row in history if "top1" in row):
            print(f"the best epoch was before the run was resumed; tailprop eval {folder} --confusion FILE draws its confusion")
            return
        draw_confusion(self.best.confusion, self.classes, folder / "confusion.png")

    def summary(self, best: dict[str, float]) -> str:
        number = self.config.paper_top1.get(self.config.model.name) if self.num_classes == 1000 else None
        paper = "" if number is None else f" (the paper, on ImageNet-1K: {number})"
        return f"top-1 {best['top1']:.2f}{paper}, top-5 {best['top5']:.2f}"


def _mixup(augment: AugmentConfig, num_classes: int) -> Mixup | None:
    if augment.mixup == 0 and augment.cutmix == 0:
        return None
    return Mixup(
        mixup_alpha=augment.mixup,
        cutmix_alpha=augment.cutmix,
        prob=augment.mix_prob,
        label_smoothing=augment.smoothing,
        num_classes=num_classes,
    )
