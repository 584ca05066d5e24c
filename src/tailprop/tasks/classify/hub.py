"""timm's config.json for a classifier."""

from collections.abc import Sequence
from typing import Any

from tailprop.tasks.classify.augment import normalisation
from tailprop.tasks.classify.config import ClassifyConfig
from tailprop.tasks.common.hub import timm_config
from tailprop.tasks.common.predictor import Predictor

__all__ = ["classifier_config", "hub_config"]


def classifier_config(settings: ClassifyConfig, names: Sequence[str]) -> dict[str, Any]:
    """The config.json of a run, with its own preprocessing and class names."""
    data, interpolation = settings.data, settings.augment.interpolation
    return timm_config(
        settings.model,
        data.size_px,
        data.eval_resize_px,
        "bicubic" if interpolation == "random" else interpolation,
        normalisation(settings.model.in_chans),
        names,
    )


def hub_config(found: Predictor[ClassifyConfig, Any]) -> dict[str, Any]:
    return classifier_config(found.settings, found.names)
