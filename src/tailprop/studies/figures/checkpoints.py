"""The checkpoints of a figure: patterns of their names, run folders of any task, and weights alone, with or without a head."""

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import timm
from torch import Tensor

from tailprop.backbone.registry import MODELS
from tailprop.engine.checkpoint import read_state_dict
from tailprop.engine.config import ModelConfig
from tailprop.engine.run_settings import find_task_name, find_weights, read_metadata
from tailprop.tasks import load
from tailprop.tasks.classify.config import ClassifyConfig
from tailprop.tasks.classify.load import ImageClassifier
from tailprop.tasks.common.models import check_model, load_weights

__all__ = ["find_checkpoints", "load_predictor"]


def find_checkpoints(given: Sequence[str]) -> list[str]:
    """The checkpoints that are named or match a pattern, each once."""
    found: dict[Path, str] = {}
    for where in given:
        is_pattern = bool(set("*?[") & set(where)) and not Path(where).exists()
        matches = sorted(glob.glob(where)) if is_pattern else [where]  # noqa: PTH207 - a pattern may be absolute
        if not matches:
            raise ValueError(f"no checkpoint matches {where!r}")
        for match in matches:
            path = Path(match)
            found.setdefault((find_weights(path) if path.exists() else path).resolve(), match)
    return list(found.values())


def load_predictor(where: str, model: str | None = None) -> Any:
    """A trained network of any task; `model` names the architecture of weights that do not say it."""
    path = Path(where)
    if path.is_file() and find_task_name(path, "") is None:
        name = model or read_metadata(path).get("architecture")
        state = read_state_dict(path)
        if name in MODELS and "head.fc.weight" not in state:
            return _load_headless(path, name, state)
        return load(where, model_name=model)
    return load(where)


def _load_headless(weights: Path, name: str, state: dict[str, Tensor]) -> ImageClassifier:
    """A backbone without classifier, as `num_classes=0` and timm's `features_only` save it, also without its last stages."""
    check_model(name)
    state = {key.removeprefix("model."): value for key, value in state.items()}
    stages = {int(key.split(".")[1]) for key in state if key.startswith("stages.")}
    if "stem.conv1.weight" not in state or not stages:
        raise ValueError(f"{weights} does not fit {name}: it has no stem or no stages")
    in_chans = state["stem.conv1.weight"].shape[1]
    model: Any = timm.create_model(name, num_classes=0, in_chans=in_chans)
    model.prune_intermediate_layers([max(stages)], prune_norm="norm.weight" not in state)
    config = ClassifyConfig(model=ModelConfig(name=name, in_chans=in_chans))
    return ImageClassifier(load_weights(model, weights, name, state), config, ())
