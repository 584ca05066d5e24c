"""timm's config.json for a segmenter: its backbone."""

from typing import Any

from tailprop.tasks.common.hub import backbone_config
from tailprop.tasks.common.predictor import Predictor

__all__ = ["hub_config"]


def hub_config(found: Predictor[Any, Any]) -> dict[str, Any] | None:
    """The config.json of the backbone; None if timm cannot find it in the weights."""
    return backbone_config(found.settings.model)
