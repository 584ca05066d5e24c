"""Loading a trained classifier with its preprocessing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from tailprop.data.loader import to_device
from tailprop.engine.checkpoint import read_state_dict
from tailprop.engine.config import ModelConfig
from tailprop.engine.run_settings import find_settings, find_weights, read_metadata
from tailprop.engine.settings import build
from tailprop.runtime.precision import autocast
from tailprop.tasks.classify.augment import eval_transform
from tailprop.tasks.classify.config import AugmentConfig, ClassifyConfig, DataConfig
from tailprop.tasks.classify.model import create_model, image_mode
from tailprop.tasks.classify.report import ClassScore, rounded
from tailprop.tasks.common.models import check_finite, check_model, for_loading, load_weights
from tailprop.tasks.common.predictor import ImageInput, Predictor, to_pil

__all__ = ["ClassPrediction", "ClassScore", "ImageClassifier", "load_classifier"]


@dataclass(frozen=True)
class ClassPrediction:
    """The prediction of a classifier for an image."""

    probabilities: Tensor  # (K,), float32, by class index
    names: tuple[str, ...]  # the K class names

    @property
    def name(self) -> str:
        """The most probable class."""
        return self.names[int(self.probabilities.argmax())]

    @property
    def probability(self) -> float:
        """The probability of the most probable class."""
        return rounded(float(self.probabilities.max()))

    def top(self, k: int = 5) -> list[ClassScore]:
        """The k most probable classes, best first."""
        values, indices = self.probabilities.topk(min(k, len(self.names)))
        pairs = zip(indices.tolist(), values.tolist(), strict=True)
        return [ClassScore(i, self.names[i], rounded(p)) for i, p in pairs]


@dataclass(frozen=True)
class ImageClassifier(Predictor[ClassifyConfig, ClassPrediction]):
    """A classifier; `names` are its classes."""

    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # mean and standard deviation, if not the default
    crop_mode: str | None = None  # timm's crop mode; None = center

    @property
    def name(self) -> str:
        return self.settings.model.name

    @property
    def mode(self) -> str:
        """Pillow's mode of the input images."""
        return image_mode(self.settings.model.in_chans, self.name)

    @property
    def paper_top1(self) -> float | None:
        """The paper's number for this model on ImageNet-1K."""
        return self.settings.paper_top1.get(self.name) if len(self.names) == 1000 else None

    def transform(self, data: DataConfig | None = None) -> Any:
        """The preprocessing of an image, by the run's settings or by `data`."""
        settings = self.settings
        return eval_transform(data or settings.data, settings.augment, settings.model.in_chans, self.statistics, self.crop_mode)

    def predict_all(self, images: Sequence[ImageInput], precision: str = "fp32", batch_size: int = 32) -> list[ClassPrediction]:
        transform = self.transform()
        predictions: list[ClassPrediction] = []
        for first in range(0, len(images), batch_size):
            batch = [transform(to_pil(image, self.mode)) for image in images[first : first + batch_size]]
            predictions += self.predict_tensors(torch.stack(batch), precision)
        return predictions

    @torch.inference_mode()
    def predict_tensors(
        self, images: Tensor, precision: str = "fp32", names: Sequence[str] | None = None
    ) -> list[ClassPrediction]:
        """Predictions for preprocessed images, (B, C, H, W); `names` of the images are used in error messages."""
        with autocast(self.device, precision):
            logits = self.model(to_device(images, self.device)).float().cpu()
        for i, row in enumerate(logits):
            check_finite(row, "the model's output" + (f" for {names[i]}" if names else ""))
        return [ClassPrediction(row, self.names) for row in logits.softmax(dim=1)]


def load_classifier(where: str | Path, model_name: str | None = None, size_px: int | None = None) -> ImageClassifier:
    """Load a classifier.

    Args:
        where: A run folder; a file of weights (.safetensors, .pt), inside or outside of its run folder; or the name of a timm
            model with pretrained weights.
        model_name: timm name of the architecture, for a file that does not contain it.
        size_px: Image size; None = that of the run or of the pretrained model.
    """
    path = Path(where)
    if not path.exists() and timm.is_model(str(where)):
        return _pretrained(str(where), size_px)
    weights = find_weights(where)
    state = read_state_dict(weights)
    found = find_settings(path, ClassifyConfig)
    if found is not None:
        settings = build(ClassifyConfig, found)
        check_model(settings.model.name)  # before timm looks for it elsewhere
    else:
        model_name = model_name or read_metadata(weights).get("architecture")
        if model_name is None:
            raise ValueError(f"{weights} does not contain the name of its model; give it with --model")
        check_model(model_name)
        settings = ClassifyConfig(model=ModelConfig(name=model_name, in_chans=_in_chans(state, model_name)))
    settings = replace(settings, model=for_loading(settings.model), data=settings.data.at_size(size_px))
    name = settings.model.name
    model = load_weights(create_model(settings.model, _num_classes(state, name), report=False), weights, name, state)
    return ImageClassifier(model, settings, _class_names(weights, model))


def _pretrained(name: str, size_px: int | None) -> ImageClassifier:
    try:
        model = timm.create_model(name, pretrained=True).eval()
    except RuntimeError as error:
        raise ValueError(f"timm has no pretrained weights for {name}: {str(error).splitlines()[0]}") from None
    theirs = timm.data.resolve_data_config(model=model)
    settings = ClassifyConfig(
        model=ModelConfig(name=name, in_chans=theirs["input_size"][0]),
        data=DataConfig(size_px=size_px or theirs["input_size"][-1], crop_pct=theirs["crop_pct"]),
        augment=AugmentConfig(interpolation=theirs["interpolation"]),
    )
    names = _imagenet_names() if model.num_classes == 1000 else tuple(map(str, range(model.num_classes)))
    return ImageClassifier(model, settings, names, (theirs["mean"], theirs["std"]), theirs["crop_mode"])


def _class_names(weights: Path, model: nn.Module) -> tuple[str, ...]:
    count = int(model.num_classes)  # type: ignore[arg-type]
    names = tuple(read_metadata(weights).get("classes", "").split("\n"))
    if len(names) != count:
        names = _imagenet_names() if count == 1000 else tuple(map(str, range(count)))
    return names


def _imagenet_names() -> tuple[str, ...]:
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    return tuple(info.index_to_description(i) for i in range(1000))


def _in_chans(state: dict[str, Tensor], name: str) -> int:
    first = state.get(f"{timm.get_pretrained_cfg_value(name, 'first_conv')}.weight")
    return 3 if first is None or first.ndim < 2 else first.shape[1]


def _num_classes(state: dict[str, Tensor], name: str) -> int:
    classifier = timm.get_pretrained_cfg_value(name, "classifier") or "head.fc"
    weight = state.get(f"{classifier}.weight")
    if weight is None or weight.ndim == 0:
        raise ValueError(
            f"the checkpoint has no {classifier}.weight, the classifier of {name}; it may be a backbone or another model"
        )
    return weight.shape[0]
