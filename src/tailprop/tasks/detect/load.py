"""A trained detector, its categories, and how its pictures are resized."""

import json
from dataclasses import dataclass, replace

import torch

from tailprop.engine.checkpoint import read_state_dict
from tailprop.engine.config import build
from tailprop.engine.run_settings import read_notes, read_settings, weights_file
from tailprop.tasks.detect.model import Detector, create_detector
from tailprop.tasks.detect.task import DetectConfig
from tailprop.utils.validation import check_at_least

__all__ = ["LoadedDetector", "load_detector"]


@dataclass(frozen=True)
class LoadedDetector:
    """A model in evaluation mode, the settings of its run, and the names of its categories by their ids."""

    model: Detector
    config: DetectConfig
    categories: dict[int, str]

    @property
    def category_ids(self) -> list[int]:
        """Label k stands for entry k - 1."""
        return list(self.categories)


def load_detector(where: str, short_px: int | None = None, long_px: int | None = None) -> LoadedDetector:
    """Load a detector from its run folder, or from exported weights; other sides than the run's may be given."""
    weights = weights_file(where)
    config = build(DetectConfig, read_settings(where))
    short = config.data.short_px if short_px is None else short_px
    check_at_least("short_px", short, 32)
    long = max(short, round(config.data.long_px * short / config.data.short_px)) if long_px is None else long_px
    check_at_least("long_px", long, short)
    config = replace(config, data=replace(config.data, short_px=short, long_px=long))
    notes = read_notes(weights)
    if "category_ids" not in notes:
        raise ValueError(f"{weights} has no model.safetensors beside it that names its categories; the run was not finished")
    categories = dict(zip(json.loads(notes["category_ids"]), notes["classes"].split("\n"), strict=True))
    model, _ = create_detector(replace(config.model, init=None), len(categories), short, long, config.detector)
    try:
        model.load_state_dict(read_state_dict(weights))
    except RuntimeError as error:
        raise ValueError(f"{weights} does not fit {config.model.name}: {str(error).splitlines()[1].strip()}") from None
    model.to(memory_format=torch.channels_last)  # as in training: another layout rounds differently
    return LoadedDetector(model.eval(), config, categories)
