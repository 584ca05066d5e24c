"""Load a trained detector with its categories and image sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from tailprop.data.formats.coco import LARGEST_ID, Masks
from tailprop.data.loader import to_device
from tailprop.engine.run_settings import find_weights, read_metadata, read_settings
from tailprop.runtime.precision import autocast
from tailprop.tasks.common.models import for_loading, load_weights
from tailprop.tasks.common.predictor import ImageInput, Predictor, as_list, to_pil, to_tensor
from tailprop.tasks.detect.config import DetectConfig
from tailprop.tasks.detect.model import Detector, create_detector
from tailprop.utils.parsing import parse_json
from tailprop.utils.text import excerpt
from tailprop.utils.validation import check_at_least

__all__ = ["Detections", "ObjectDetector", "load_detector"]


@dataclass(frozen=True)
class Detections:
    """The objects a detector finds in an image, best first."""

    boxes: Tensor  # (N, 4): x1, y1, x2, y2 in pixels
    scores: Tensor  # (N,)
    labels: Tensor  # (N,): indices into the detector's names
    names: tuple[str, ...]  # class name of each object
    masks: Tensor | None = None  # (N, H, W), bool; None if the detector predicts boxes alone

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class ObjectDetector(Predictor[DetectConfig, Detections]):
    """A detector; `names` are its categories."""

    category_ids: tuple[int, ...] = ()  # in the training data; label k of the model is entry k - 1

    @property
    def detector(self) -> Detector:
        assert isinstance(self.model, Detector)
        return self.model

    @property
    def categories(self) -> dict[int, str]:
        """Names by category id."""
        return dict(zip(self.category_ids, self.names, strict=True))

    def predict_all(self, images: Sequence[ImageInput], precision: str = "fp32", score: float = 0.5) -> list[Detections]:
        return [self._detections(self.find(to_pil(image, "RGB"), precision, score), score) for image in images]

    def predict(self, images: Any, precision: str = "fp32", score: float = 0.5) -> Any:
        """The objects with at least this score in an image, or in each image of a list."""
        given, is_list = as_list(images)
        found = self.predict_all(given, precision, score)
        return found if is_list else found[0]

    @torch.inference_mode()
    def find(self, image: Image.Image, precision: str = "fp32", score: float | None = None) -> dict[str, Tensor]:
        """The output of torchvision's detector for an RGB image: boxes, labels, scores, and masks if it has any.

        Objects below `score` are dropped before their masks are computed, because every mask has the size of the image.
        """
        heads = self.detector.roi_heads
        threshold = heads.score_thresh
        try:
            if score is not None:
                heads.score_thresh = score - 1e-6  # torchvision drops scores equal to its threshold
            with autocast(self.device, precision):
                (found,) = self.model([to_device(to_tensor(image), self.device).float() / 255])
        finally:
            heads.score_thresh = threshold
        return found

    def _detections(self, found: dict[str, Tensor], score: float) -> Detections:
        kept = found["scores"] >= score
        found = {name: value[kept].cpu() for name, value in found.items()}
        labels = found["labels"] - 1  # torchvision's 0 is the background
        names = tuple(self.names[label] for label in labels.tolist())
        masks = found["masks"][:, 0] >= 0.5 if "masks" in found else None
        return Detections(found["boxes"].float(), found["scores"].float(), labels, names, masks)


def load_detector(where: str | Path, short_px: int | None = None, long_px: int | None = None) -> ObjectDetector:
    """Load a detector from a run folder or exported weights; `short_px` and `long_px` override the run's sizes."""
    weights = find_weights(where)
    config = read_settings(where, DetectConfig)
    short = config.data.short_px if short_px is None else short_px
    check_at_least("short_px", short, 32)
    long = max(short, round(config.data.long_px * short / config.data.short_px)) if long_px is None else long_px
    check_at_least("long_px", long, short)
    config = replace(config, model=for_loading(config.model), data=replace(config.data, short_px=short, long_px=long))
    metadata = read_metadata(weights)
    if not {"category_ids", "classes"} <= metadata.keys():
        raise ValueError(
            f"{weights} has no model.safetensors with the category names next to it: the run was not finished; resume it first"
        )
    ids, names = _category_ids(metadata["category_ids"], weights), tuple(metadata["classes"].split("\n"))
    if len(set(ids)) != len(names):
        raise ValueError(f"{weights} has {len(names)} category names for {len(set(ids))} category ids in its metadata")
    config = replace(config, detector=replace(config.detector, masks=_masks(metadata, weights)))
    model, _ = create_detector(config.model, len(names), short, long, config.detector)
    return ObjectDetector(load_weights(model, weights, config.model.name), config, names, ids)


def _masks(metadata: dict[str, str], weights: Path) -> Masks:
    """Whether the network has a mask head, as its training data decided; earlier versions always had one."""
    match metadata.get("masks", "yes"):
        case "yes":
            return "yes"
        case "no":
            return "no"
        case other:
            raise ValueError(f"the metadata of {weights} has masks {excerpt(other)}, not yes or no")


def _category_ids(text: str, weights: Path) -> tuple[int, ...]:
    where = f"the list of category ids in the metadata of {weights}"
    ids = parse_json(text, where)
    if not isinstance(ids, list) or not all(type(i) is int and abs(i) <= LARGEST_ID for i in ids):
        raise ValueError(f"{where} is {excerpt(text)}, not a list of integers")
    return tuple(ids)
