"""Detection and instance segmentation: settings, model, batches, losses and COCO metrics."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tailprop.backbone.cost import count_parameters
from tailprop.data.broken import Broken
from tailprop.data.formats.coco import CocoImage, CocoSet, Masks, read_annotated
from tailprop.data.loader import create_loader, to_device
from tailprop.data.samplers import EvalSampler
from tailprop.engine.integrity import matches_digest, write_digest
from tailprop.runtime.distributed import World, all_gather, all_reduce_sum
from tailprop.runtime.rng import seeded
from tailprop.tasks.common.figures import draw_learning, run_title
from tailprop.tasks.common.hub import backbone_config
from tailprop.tasks.common.pages import draw_page
from tailprop.tasks.common.task import BaseTask, data_summary
from tailprop.tasks.detect.config import DetectConfig, DetectDataConfig
from tailprop.tasks.detect.data import AspectRatioSampler, Augment, DetectBatch, DetectionDataset, Target, collate, open_coco
from tailprop.tasks.detect.draw import draw_objects, objects_of, truth_of
from tailprop.tasks.detect.metrics import kinds_of, score_results, to_results
from tailprop.tasks.detect.model import Detector, create_detector, detector_macs
from tailprop.utils.files import write_json
from tailprop.utils.parsing import parse_json, read_bytes
from tailprop.utils.text import say, say_lines

RESULTS = "coco_results.json"  # detections of the last evaluation
PAGE_PX = 320  # width of an image in predictions.jpg
LOSS_IMAGES = 32  # validation images of each process whose loss is computed: under 1 % of an evaluation on COCO
IMAGES_DRAWN = 12  # validation images in predictions.jpg
__all__ = ["Detection", "detect_all"]


class Detection(BaseTask[DetectConfig]):
    """The detection task of one process."""

    def __init__(self, config: DetectConfig, world: World) -> None:
        super().__init__(config, world, config.data.on_broken)
        data = config.data
        train = open_coco(data, "train", world, config.detector.masks)
        self.masks: Masks = "yes" if train.has_masks else "no"
        self.broken.record(train.broken, shared=True)
        used = replace(train, images=self._training_images(train), broken=[])
        self.sets = {"train": used, "validation": used if data.validate_on_train else self._validation_set(train)}
        self.classes, self.category_ids = train.classes, train.category_ids
        self.sampler = self._create_sampler(used.images)
        augment = Augment(config.augment, data.long_px)
        dataset = DetectionDataset(used.images, self.category_ids, augment, with_masks=used.has_masks)
        self.train_loader = create_loader(dataset, self.sampler, collate, data.workers, world.device)
        self.eval_loader = eval_loader(self.sets["validation"], self.category_ids, data.workers, world, with_targets=True)
        self.results: list[dict[str, Any]] | None = None  # of the last evaluation

    def _create_sampler(self, images: Sequence[CocoImage]) -> AspectRatioSampler:
        optim = self.config.optim
        schedule = dict(accumulate=optim.grad_accum_steps, epochs=optim.epochs, epoch_steps=optim.epoch_steps)
        is_wide = [image.width >= image.height for image in images]
        return AspectRatioSampler(is_wide, optim.batch_size, self.config.run.seed, self.world, **schedule)

    def _training_images(self, train: CocoSet) -> list[CocoImage]:
        empty = 0 if self.config.data.keep_empty else sum(not image.targets for image in train.images)
        if empty and self.world.is_main:
            say(f"skipped {empty} of {len(train.images)} training images without objects (--data.keep-empty keeps them)")
        return training_images(train, self.config.data)

    def _validation_set(self, train: CocoSet) -> CocoSet:
        validation = open_coco(self.config.data, "validation", self.world, self.masks)
        check_categories(train, validation)
        self.broken.record(validation.broken, shared=True)
        return replace(validation, categories=train.categories, broken=[])  # validation may have fewer categories

    def build_model(self, resumed: bool = False) -> nn.Module:
        data, config = self.config.data, self.model_config(resumed)
        settings = replace(self.config.detector, masks=self.masks)
        model, report = create_detector(config, len(self.classes), data.short_px, data.long_px, settings)
        if report is not None and self.world.is_main:
            say_lines(report)
        return model

    def loss(self, model: nn.Module, batch: DetectBatch) -> Tensor:
        self.check_batch(batch)
        images = [to_device(image, self.world.device).float() / 255 for image in batch.images]
        targets = [{name: to_device(v, self.world.device) for name, v in target.items()} for target in batch.targets]
        losses: dict[str, Tensor] = model(images, targets)
        return torch.stack(list(losses.values())).sum()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        validation = self.sets["validation"]
        losses = SampledLoss(model, self.config.run.seed)
        results, broken = detect_all(
            model, self.eval_loader, self.category_ids, self.world.device, self.broken.record, losses.add
        )
        scores = score_over_processes(validation, results, broken, self.world)
        scores |= losses.metric(self.world.device)
        self.results = results
        if self.world.is_main:
            write_json(self.config.run.out / RESULTS, results, indent=None)
            write_digest(self.config.run.out / RESULTS)
        return scores

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """The entries of this task in the manifest."""
        assert isinstance(model, Detector)
        data = self.config.data
        return {
            "classes": len(self.classes),
            "examples": {name: len(part.images) for name, part in self.sets.items()},
            "split_hash": {name: part.fingerprint() for name, part in self.sets.items()},
            "parameters": count_parameters(model),
            "macs": detector_macs(model, data.short_px, min(data.long_px, round(data.short_px * 1.6))),
        }

    def data_summary(self) -> str:
        counted = data_summary(self.classes, {name: len(part.images) for name, part in self.sets.items()})
        return counted if self.masks == "yes" else f"{counted}; boxes without masks: Faster R-CNN"

    def metadata(self) -> dict[str, str]:
        """The metadata of the exported weights."""
        return {
            "task": "detect",
            "architecture": self.config.model.name,
            "classes": "\n".join(self.classes),
            "category_ids": json.dumps(self.category_ids),
            "masks": self.masks,
        }

    def hub_config(self) -> dict[str, Any] | None:
        return backbone_config(self.config.model)

    def draw(self, history: list[dict[str, float]], folder: Path) -> None:
        measured_on = "training images" if self.config.data.validate_on_train else "validation"
        validation, broken = self.sets["validation"], set(self.broken)
        metrics = {f"{kind}_ap": f"{kind} AP, %" for kind in kinds_of(validation.has_masks)}
        title = run_title(self.config, folder)
        draw_learning(history, folder / "learning.png", metrics, measured_on, title)
        drawn = [image for image in validation.images if str(image.path) not in broken][:IMAGES_DRAWN]
        if not self._has_results(folder / RESULTS):
            return
        images = []
        for image in drawn:  # ground truth and detections side by side
            found = [entry for entry in self.results or () if entry["image_id"] == image.id]
            for objects in (truth_of(image, validation.categories), objects_of(found, validation.categories)):
                images.append(draw_objects(read_annotated(image), objects, shown_px=PAGE_PX))
        if images:
            headings = ("ground truth", "prediction")
            draw_page(images, folder / "predictions.jpg", 4, PAGE_PX, headings, f"{title}, {measured_on}")

    def _has_results(self, path: Path) -> bool:
        """Read the results of the last evaluation from the run folder when a finished run is resumed without evaluating."""
        if self.results is not None or not path.is_file():
            return True
        if not matches_digest(path):
            say(f"{path} is corrupt: predictions.jpg is not drawn again", error=True)
            return False
        self.results = parse_json(read_bytes(path), path)
        return True

    def summary(self, best: dict[str, float]) -> str:
        scores = ", ".join(f"{kind} AP {best[f'{kind}_ap']:.1f}" for kind in kinds_of(self.masks == "yes"))
        return scores + (papers_ap(self.config, len(self.classes)) if self.masks == "yes" else "")


def training_images(train: CocoSet, data: DetectDataConfig) -> list[CocoImage]:
    """The images of the training split that are used: those with objects, up to `data.limit`."""
    images = train.images if data.keep_empty else [image for image in train.images if image.targets]
    if not images:
        raise ValueError(f"no image of {train.name} has an object to train on; check its annotations")
    return images[: data.limit]


def papers_ap(config: DetectConfig, num_classes: int) -> str:
    """The paper's AP for this model as text; empty if it has none or the data does not have COCO's 80 classes."""
    numbers = config.paper_ap.get(config.model.name) if num_classes == 80 else None
    return "" if numbers is None else f" (the paper, on COCO 2017: {numbers[0]:.1f}, {numbers[1]:.1f})"


def check_categories(train: CocoSet, validation: CocoSet) -> None:
    """Check that category ids have the same meaning in both files; validation may lack some."""
    different = sorted(set(validation.categories.items()) - set(train.categories.items()))
    if different:
        raise ValueError(
            f"{validation.name} has categories that {train.name} does not have, for example {different[0][1]!r} with id "
            f"{different[0][0]}; use the same categories in both"
        )


def eval_loader(
    part: CocoSet, category_ids: Sequence[int], workers: int, world: World, with_targets: bool = False
) -> DataLoader[Any]:
    """A loader with batches of one image: padding would make a result depend on the other images of the batch."""
    dataset = DetectionDataset(part.images, category_ids, with_targets=with_targets, with_masks=part.has_masks)
    return create_loader(dataset, EvalSampler(len(part.images), 1, world), collate, workers, world.device)


class SampledLoss:
    """The mean loss of the first images of each process. It needs a second pass of the network, so it takes only a few."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self.model, self.seed = model, seed
        self.sums = torch.zeros(2, dtype=torch.float64)  # sum of the losses, number of images

    def add(self, image: Tensor, target: Target) -> None:
        if self.sums[1] < LOSS_IMAGES and isinstance(self.model, Detector):
            with seeded(self.seed):  # regions are sampled, and training must not notice
                loss = self.model.evaluation_loss(image, {name: to_device(v, image.device) for name, v in target.items()})
            self.sums += torch.tensor([float(loss), 1.0], dtype=torch.float64)

    def metric(self, device: torch.device) -> dict[str, float]:
        total, count = all_reduce_sum(self.sums, device).tolist()
        return {"val_loss": total / count} if count else {}


@torch.inference_mode()
def detect_all(
    model: nn.Module,
    batches: Iterable[DetectBatch],
    category_ids: Sequence[int | None],
    device: torch.device,
    record: Callable[[Sequence[Broken]], object],
    on_image: Callable[[Tensor, Target], object] = lambda _image, _target: None,
) -> tuple[list[dict[str, Any]], list[Broken]]:
    """The detections in the images of all processes, sorted by image id, and the images that could not be read.

    `record` is called with the broken images of each batch and may raise, `on_image` with each image, (3, H, W) from 0 to 1,
    and its objects.
    """
    results: list[dict[str, Any]] = []
    broken: list[Broken] = []
    for batch in batches:
        record(batch.broken)
        broken += batch.broken
        for bytes_, target, image_id in zip(batch.images, batch.targets, batch.ids, strict=True):
            image = to_device(bytes_, device).float() / 255
            (found,) = model([image])
            on_image(image, target)
            results += to_results(image_id, found, category_ids)
    gathered = [entry for share in all_gather(results) for entry in share]
    gathered.sort(key=lambda entry: entry["image_id"])  # stable: within an image the order by score is kept
    return gathered, [item for share in all_gather(broken) for item in share]


def score_over_processes(
    validation: CocoSet, results: Sequence[dict[str, Any]], broken: Sequence[Broken], world: World
) -> dict[str, float]:
    """The metrics, computed on rank 0 for all processes; images that could not be read do not count."""
    names = {item.name for item in broken}
    ids = {image.id for image in validation.images if str(image.path) not in names}
    if not ids:
        raise ValueError(f"no image of {validation.name} could be read; fix the images or the annotations")
    kinds = kinds_of(validation.has_masks)
    scores = score_results(validation.ground_truth(ids), results, kinds) if world.is_main else None
    return all_gather(scores)[0]
