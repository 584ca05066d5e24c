"""Load a trained segmenter with its classes and inference settings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tailprop.data.formats.colors import ColorTable
from tailprop.data.loader import to_device
from tailprop.engine.run_settings import find_weights, read_metadata, read_settings
from tailprop.runtime.precision import autocast
from tailprop.tasks.common.models import for_loading, load_weights
from tailprop.tasks.common.predictor import ImageInput, Predictor, to_pil, to_tensor
from tailprop.tasks.segment.config import SegmentConfig
from tailprop.tasks.segment.inference import label_image
from tailprop.tasks.segment.model import create_segmenter
from tailprop.utils.parsing import parse_json
from tailprop.utils.text import excerpt

__all__ = ["ImageSegmenter", "LabelMap", "load_segmenter"]


@dataclass(frozen=True)
class LabelMap:
    """The class of every pixel of an image."""

    labels: Tensor  # (H, W): indices into `names`
    names: tuple[str, ...]

    @property
    def counts(self) -> Tensor:
        """Number of pixels of each class, (K,)."""
        return torch.bincount(self.labels.flatten(), minlength=len(self.names))

    @property
    def shares(self) -> dict[str, float]:
        """The share of pixels of each class that occurs, largest first."""
        counts = self.counts
        order = counts.argsort(descending=True, stable=True).tolist()
        return {self.names[i]: counts[i].item() / self.labels.numel() for i in order if counts[i] > 0}


@dataclass(frozen=True)
class ImageSegmenter(Predictor[SegmentConfig, LabelMap]):
    """A segmenter; `names` are its classes."""

    first_label: int = 0  # value of the first class in the label maps it was trained on
    colors: ColorTable | None = None  # of those label maps, if they had colours

    def label(self, image: Tensor) -> Tensor:
        """Predict the class of every pixel of a uint8 image, (3, H, W) -> (H, W)."""
        data = self.settings.data
        return label_image(self.model, image, self.settings.inference, data.short_px, data.long_px)

    def predict_all(self, images: Sequence[ImageInput], precision: str = "fp32") -> list[LabelMap]:
        with autocast(self.device, precision):
            tensors = (to_device(to_tensor(to_pil(image, "RGB")), self.device) for image in images)
            return [LabelMap(self.label(image).cpu(), self.names) for image in tensors]


def load_segmenter(where: str | Path) -> ImageSegmenter:
    """Load a segmenter from a run folder or exported weights."""
    weights = find_weights(where)
    config = read_settings(where, SegmentConfig)
    config = replace(config, model=for_loading(config.model))
    metadata = read_metadata(weights)
    if not {"first_label", "classes"} <= metadata.keys():
        raise ValueError(
            f"{weights} has no model.safetensors with the class names next to it: the run was not finished; resume it first"
        )
    names, first_label = tuple(metadata["classes"].split("\n")), _first_label(metadata["first_label"], weights)
    colors = _colors(metadata["colors"], len(names), weights) if "colors" in metadata else None
    model, _ = create_segmenter(config.model, len(names), config.segmenter)
    return ImageSegmenter(load_weights(model, weights, config.model.name), config, names, first_label, colors)


def _colors(text: str, num_classes: int, weights: Path) -> ColorTable:
    where = f"the table of colours in the metadata of {weights}"
    table = parse_json(text, where)
    if isinstance(table, list) and len(table) == 2 and all(_are_colors(colors) for colors in table):
        colors, ignored = (tuple(map(tuple, colors)) for colors in table)
        if len(colors) == num_classes and len({*colors, *ignored}) == len(colors) + len(ignored):
            return ColorTable(colors, ignored)
    raise ValueError(f"{where} is {excerpt(text)}, not a different colour for each of {num_classes} classes")


def _are_colors(values: Any) -> bool:
    def is_color(value: Any) -> bool:
        return isinstance(value, list) and len(value) == 3 and all(type(v) is int and 0 <= v <= 255 for v in value)

    return isinstance(values, list) and all(map(is_color, values))


def _first_label(text: str, weights: Path) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise ValueError(f"the first label in the metadata of {weights} is {excerpt(text)}, not a number of a label map")
    return int(text)
