"""The classifier: any timm model, from scratch or from a checkpoint."""

import timm
from torch import nn

from tailprop.backbone.weights import WarmStartReport
from tailprop.engine.checkpoint import warm_start
from tailprop.engine.config import ModelConfig
from tailprop.engine.run_settings import find_weights, read_config, read_metadata
from tailprop.tasks.common.hub import HUB, TIMM, initial_state
from tailprop.tasks.common.models import create, model_arguments
from tailprop.utils.text import say, say_lines

__all__ = ["create_model", "image_mode"]


def image_mode(in_chans: int, name: str) -> str:
    """Pillow's mode of the input images of a model."""
    modes = {1: "L", 3: "RGB", 4: "RGBA"}
    if in_chans not in modes:
        raise ValueError(f"{name} takes {in_chans} channels (model.in_chans); images have 1, 3 or 4")
    return modes[in_chans]


def create_model(config: ModelConfig, num_classes: int, report: bool = True) -> nn.Module:
    """The network, from scratch or from a checkpoint."""
    kwargs = dict(num_classes=num_classes, in_chans=config.in_chans, **model_arguments(config))
    model = create(config.name, lambda: timm.create_model(config.name, **kwargs))
    if config.init is not None:
        state, theirs = initial_state(config)
        loaded = warm_start(model, state)
        _check_same_architecture(config, model, loaded, theirs)
        if report:
            say_lines(loaded)
    elif report:
        say(f"training {config.name} from scratch; use --model.init for a warm start")
    return model


def _check_same_architecture(config: ModelConfig, model: nn.Module, report: WarmStartReport, theirs: str | None) -> None:
    """Raise if the checkpoint of another model fills less than half of this one; vHeat, for example, fills most of TailProp."""
    is_file = not str(config.init).startswith((TIMM, HUB))
    theirs, ours = _architecture(str(config.init)) if is_file else theirs, model.state_dict()
    share = sum(ours[name].numel() for name in report.taken) / sum(value.numel() for value in ours.values())
    if theirs not in (None, config.name) and share < 0.5:
        fills = f"only {share:.0%}" if share > 0.005 else "nothing"
        raise ValueError(
            f"{config.init} is a {theirs} and fills {fills} of {config.name}; use --model.name {theirs}, or omit --model.init"
        )


def _architecture(where: str) -> str | None:
    """The model name in the metadata of exported weights or in the settings of their run."""
    weights = find_weights(where)
    if weights.suffix == ".safetensors":
        return read_metadata(weights).get("architecture")
    if weights.name not in ("best.pt", "last.pt"):
        return None
    try:
        return read_config(weights.parent)["model"].get("name")
    except ValueError:  # not a run folder of this package
        return None
