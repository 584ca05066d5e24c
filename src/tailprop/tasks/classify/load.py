"""A trained classifier and how its pictures have to be prepared, from whatever a user has in hand."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

import tailprop.backbone.model  # noqa: F401 - registers the models
from tailprop.engine.checkpoint import read_state_dict
from tailprop.engine.config import ModelConfig, build
from tailprop.engine.run_settings import find_settings, read_notes, weights_file
from tailprop.tasks.classify.augment import AugmentConfig, eval_transform
from tailprop.tasks.classify.data import DataConfig
from tailprop.tasks.classify.model import create_model
from tailprop.tasks.common.models import check_model

__all__ = ["Classifier", "load_classifier"]


@dataclass(frozen=True)
class Classifier:
    """A model in evaluation mode, its class names, and the settings its pictures are prepared by."""

    model: nn.Module
    name: str
    classes: tuple[str, ...]
    in_chans: int
    data: DataConfig
    augment: AugmentConfig
    paper_top1: float | None = None  # on ImageNet-1K
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # mean and deviation, if not ours
    crop_mode: str | None = None

    @property
    def mode(self) -> str:
        """Pillow's mode of the pictures it takes."""
        modes = {1: "L", 3: "RGB", 4: "RGBA"}
        if self.in_chans not in modes:
            raise ValueError(f"{self.name} takes {self.in_chans} channels; pictures have 1, 3 or 4")
        return modes[self.in_chans]

    def transform(self, data: DataConfig | None = None) -> Any:
        """The preparation of a picture, by its own settings or by others."""
        return eval_transform(data or self.data, self.augment, self.in_chans, self.statistics, self.crop_mode)


def load_classifier(where: str, model_name: str | None = None, size_px: int | None = None) -> Classifier:
    """Load a classifier.

    Args:
        where: A run folder; a file of weights (.safetensors, .pt) with or without its run folder around it; or a timm model
            with pretrained weights, by name.
        model_name: The architecture, for a file that does not say.
        size_px: Side of the pictures; none = what the run or the model was made for.
    """
    path = Path(where)
    if not path.exists() and timm.is_model(where):
        return _pretrained(where, size_px)
    weights = weights_file(where)
    state = read_state_dict(weights)
    if (config := find_settings(path)) is not None:
        model_config = build(ModelConfig, {**config["model"], "init": None}, "model.")
        data, augment = build(DataConfig, config["data"], "data."), build(AugmentConfig, config.get("augment", {}), "augment.")
        paper = (config.get("paper_top1") or {}).get(model_config.name)
    else:
        if model_name is None:
            model_name = read_notes(weights).get("architecture")
        if model_name is None:
            raise ValueError(f"{weights} does not say which model it belongs to; name it with --model")
        model_config, data, augment, paper = ModelConfig(name=model_name), DataConfig(), AugmentConfig(), None
        check_model(model_name)
        model_config = replace(model_config, in_chans=_in_chans(state, model_name))
    if size_px is not None:
        ratio = (data.resize_px or data.size_px) / data.size_px
        data = replace(data, size_px=size_px, resize_px=round(size_px * ratio))
    model = create_model(model_config, _num_classes(state, model_config.name), report=False)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{weights} does not fit {model_config.name}: {str(error).splitlines()[1].strip()}") from None
    model.to(memory_format=torch.channels_last)  # as in training: another layout rounds differently
    names = _class_names(weights, model)
    paper = paper if len(names) == 1000 else None
    return Classifier(model.eval(), model_config.name, names, model_config.in_chans, data, augment, paper)


def _pretrained(name: str, size_px: int | None) -> Classifier:
    try:
        model = timm.create_model(name, pretrained=True).eval()
    except RuntimeError as error:
        raise ValueError(f"timm has no weights to download for {name}: {str(error).splitlines()[0]}") from None
    settings = timm.data.resolve_data_config(model=model)
    size = size_px or settings["input_size"][-1]
    data = DataConfig(size_px=size, resize_px=round(size / settings["crop_pct"]))
    augment = AugmentConfig(interpolation=settings["interpolation"])
    names = _imagenet_names() if model.num_classes == 1000 else tuple(map(str, range(model.num_classes)))
    statistics = settings["mean"], settings["std"]
    return Classifier(model, name, names, settings["input_size"][0], data, augment, None, statistics, settings["crop_mode"])


def _class_names(weights: Path, model: nn.Module) -> tuple[str, ...]:
    count = int(model.num_classes)  # type: ignore[arg-type]
    names = tuple(read_notes(weights).get("classes", "").split("\n"))
    if len(names) != count:
        names = _imagenet_names() if count == 1000 else tuple(map(str, range(count)))
    return names


def _imagenet_names() -> tuple[str, ...]:
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    return tuple(info.index_to_description(i) for i in range(1000))


def _in_chans(state: dict[str, Tensor], name: str) -> int:
    first = state.get(f"{timm.get_pretrained_cfg_value(name, 'first_conv')}.weight")
    return 3 if first is None else first.shape[1]


def _num_classes(state: dict[str, Tensor], name: str) -> int:
    classifier = timm.get_pretrained_cfg_value(name, "classifier") or "head.fc"
    weight = state.get(f"{classifier}.weight")
    if weight is None:
        raise ValueError(
            f"the checkpoint has no {classifier}.weight, the classifier of {name}; it may be a backbone, or another model's"
        )
    return weight.shape[0]
