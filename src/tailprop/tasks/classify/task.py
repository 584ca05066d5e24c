"""Classification: settings, model, batches, loss and metrics."""

from functools import partial
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn

from tailprop.backbone.cost import count_macs, count_parameters
from tailprop.data.loader import create_loader, to_device
from tailprop.data.samplers import EvalSampler
from tailprop.runtime.distributed import World, local_main_first, print_main
from tailprop.tasks.classify.augment import BatchAugment, eval_transform, train_transforms
from tailprop.tasks.classify.config import AugmentConfig, ClassifyConfig
from tailprop.tasks.classify.data import Batch, ImageDataset, collate, open_source
from tailprop.tasks.classify.distill import create_distillation
from tailprop.tasks.classify.figures import CONFUSION_CLASSES, draw_confusion
from tailprop.tasks.classify.hub import classifier_config
from tailprop.tasks.classify.metrics import Accuracy, evaluate_classifier
from tailprop.tasks.classify.model import create_model, image_mode
from tailprop.tasks.classify.sources import Source, check_labels, check_same_classes, split_hash
from tailprop.tasks.common.figures import draw_learning, run_title
from tailprop.tasks.common.task import BaseTask, create_train_sampler, data_summary
from tailprop.utils.errors import missing_memory
from tailprop.utils.text import say

__all__ = ["Classification"]


class Classification(BaseTask[ClassifyConfig]):
    """The classification task in one process."""

    def __init__(self, config: ClassifyConfig, world: World) -> None:
        super().__init__(config, world, config.data.on_broken)
        data = config.data
        train, validation = (
            local_main_first(partial(open_source, data, split), data.download) for split in ("train", "validation")
        )
        self.classes = train.classes
        self.num_classes = data.num_classes or len(train.classes)
        self.sources: dict[str, Source] = {"train": train, "validation": validation}
        self._check_classes()
        self._create_loaders(train, validation)
        self.augment = BatchAugment(config.augment, config.model.in_chans, world.device)
        self.mixup = _mixup(config.augment, self.num_classes)
        self.distillation = create_distillation(config, self.classes, world)
        self.best: Accuracy | None = None  # of the epochs since the start of this process
        data.warn_of_small_crop()

    def _check_classes(self) -> None:
        given = self.config.data.num_classes
        if len(self.classes) < 2 and given is None:
            raise ValueError(
                f"the dataset has a single class, {', '.join(self.classes)}; if it consists of folders, --data.root must be "
                "the one with a folder for each class"
            )
        check_same_classes(self.sources["train"], self.sources["validation"])
        if self.num_classes > len(self.classes):
            print_main(
                f"--data.num-classes is {given}, but the dataset has {len(self.classes)}: the other outputs are not trained"
            )
        for split, source in self.sources.items():
            check_labels(source, self.num_classes, split, " or set --data.num-classes")

    def _create_loaders(self, train: Source, validation: Source) -> None:
        data, augment, optim, world = self.config.data, self.config.augment, self.config.optim, self.world
        in_chans = self.config.model.in_chans
        mode = image_mode(in_chans, self.config.model.name)
        gb_per_image = data.cache_gb / max(1, data.workers) / (len(train.labels) + len(validation.labels))
        transforms = train_transforms(data, augment, in_chans)
        train_set = ImageDataset(train, transforms, mode, replace_broken=True, cache_gb=gb_per_image * len(train.labels))
        transform = eval_transform(data, augment, in_chans)
        eval_set = ImageDataset(validation, [transform], mode, cache_gb=gb_per_image * len(validation.labels))
        self.sampler = create_train_sampler(len(train.labels), optim, self.config.run.seed, world)
        eval_sampler = EvalSampler(len(validation.labels), optim.batch_size, world)
        self.train_loader = create_loader(train_set, self.sampler, collate, data.workers, world.device)
        self.eval_loader = create_loader(eval_set, eval_sampler, collate, data.workers, world.device)

    def build_model(self, resumed: bool = False) -> nn.Module:
        return create_model(self.model_config(resumed), self.num_classes, report=self.world.is_main and not resumed)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.check_batch(batch)
        images = self.augment(to_device(batch.images, self.world.device), batch.seeds)
        target = to_device(batch.labels, self.world.device)
        if self.mixup is not None:
            images, target = self.mixup(images, target)
        if self.distillation is None:
            return self._label_loss(model(images), target)
        logits, imitation = self.distillation.run(model, images)
        share = self.config.distill.weight
        return (1 - share) * self._label_loss(logits, target) + share * imitation

    def _label_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.mixup is None:
            return F.cross_entropy(logits, target, label_smoothing=self.config.augment.smoothing)
        return SoftTargetCrossEntropy()(logits, target)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        result = evaluate_classifier(model, self.eval_loader, self.num_classes, self.world.device, record=self.broken.record)
        if self.best is None or result.top1 > self.best.top1:  # the same criterion as for the exported weights
            self.best = result
        return {"top1": result.top1, "top5": result.top5, "val_loss": result.loss}

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """Entries of the manifest."""
        size, others = self.config.data.size_px, set(self.config.data.train_px)
        for other in others - {size}:
            self._count_macs(model.eval(), other, "--data.train-px")
        return {
            "classes": len(self.classes),
            "examples": {name: len(source.labels) for name, source in self.sources.items()},
            "split_hash": {name: split_hash(source) for name, source in self.sources.items()},
            "parameters": count_parameters(model),
            "macs": self._count_macs(model.eval(), size),
            **({} if self.distillation is None else {"teacher": self.distillation.describe()}),
        }

    def _count_macs(self, model: nn.Module, size: int, option: str = "--data.size-px") -> int:
        try:
            return count_macs(model, size, size)
        except (AssertionError, RuntimeError) as error:  # transformers with a fixed image size reject others
            if missing_memory(error):
                raise
            name, reason = self.config.model.name, str(error).splitlines()[0]
            raise ValueError(
                f"{name} does not accept images of {size} px ({reason}); change {option}, or use --model.args img_size={size}"
            ) from None

    def data_summary(self) -> str:
        return data_summary(self.classes, {split: len(source.labels) for split, source in self.sources.items()})

    def metadata(self) -> dict[str, str]:
        """Metadata of the exported weights."""
        return {
            "architecture": self.config.model.name,
            "num_classes": str(self.num_classes),
            "classes": "\n".join((*self.classes, *map(str, range(len(self.classes), self.num_classes)))),
        }

    def hub_config(self) -> dict[str, Any]:
        return classifier_config(self.config, self.metadata()["classes"].split("\n"))

    def draw(self, history: list[dict[str, float]], folder: Path) -> None:
        title = run_title(self.config, folder)
        draw_learning(history, folder / "learning.png", {"top1": "top-1, %"}, title=title)
        if self.best is None or self.num_classes > CONFUSION_CLASSES:
            return
        if self.best.top1 < max(row["top1"] for row in history if "top1" in row):
            hint = f"tailprop eval {folder} --confusion FILE draws its confusion matrix"
            say(f"the best epoch was before the run was resumed; {hint}")
            return
        draw_confusion(self.best.confusion, self.classes, folder / "confusion.png", title)

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
