"""A trained segmenter, its classes, and how it looks at pictures."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tailprop.engine.checkpoint import read_state_dict
from tailprop.engine.config import build
from tailprop.engine.run_settings import read_notes, read_settings, weights_file
from tailprop.tasks.segment.inference import label_picture
from tailprop.tasks.segment.model import Segmenter, create_segmenter
from tailprop.tasks.segment.task import SegmentConfig

__all__ = ["LoadedSegmenter", "load_segmenter"]


@dataclass(frozen=True)
class LoadedSegmenter:
    """A model in evaluation mode, the settings of its run, and the names of its classes."""

    model: Segmenter
    config: SegmentConfig
    classes: tuple[str, ...]
    first_label: int  # number of the first class in the label maps it was trained on

    def label(self, image: Tensor) -> Tensor:
        """The class of every pixel of a picture in bytes, (3, H, W) -> (H, W)."""
        data = self.config.data
        return label_picture(self.model, image, self.config.inference, data.short_px, data.long_px)


def load_segmenter(where: str) -> LoadedSegmenter:
    """Load a segmenter from its run folder, or from exported weights."""
    weights = weights_file(where)
    config = build(SegmentConfig, read_settings(where))
    notes = read_notes(weights)
    if "first_label" not in notes:
        raise ValueError(f"{weights} has no model.safetensors beside it that names its classes; the run was not finished")
    classes = tuple(notes["classes"].split("\n"))
    model, _ = create_segmenter(replace(config.model, init=None), len(classes), config.segmenter)
    try:
        model.load_state_dict(read_state_dict(weights))
    except RuntimeError as error:
        raise ValueError(f"{weights} does not fit {config.model.name}: {str(error).splitlines()[1].strip()}") from None
    model.to(memory_format=torch.channels_last)  # as in training: another layout rounds differently
    return LoadedSegmenter(model.eval(), config, classes, int(notes["first_label"]))
