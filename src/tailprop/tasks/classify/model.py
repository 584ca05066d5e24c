"""The classifier: any model of timm, from scratch or from a checkpoint."""

import timm
from torch import nn

from tailprop.backbone.weights import WarmStartReport
from tailprop.engine.checkpoint import warm_start
from tailprop.engine.config import ModelConfig
from tailprop.engine.run_settings import find_weights, read_config, read_metadata
from tailprop.tasks.common.models import create, model_arguments

__all__ = ["create_model", "image_mode"]


def image_mode(in_chans: int, name: str) -> str:
    """Pillow's mode of the images a model takes."""
    modes = {1: "L", 3: "RGB", 4: "RGBA"}
    if in_chans not in modes:
        raise ValueError(f"{name} takes {in_chans} channels (model.in_chans); images have 1, 3 or 4")
    return modes[in_chans]


def create_model(config: ModelConfig, num_classes: int, report: bool = True) -> nn.Module:
    """The network, from scratch or from a checkpoint."""
    kwargs = dict(num_classes=num_classes, in_chans=config.in_chans, **model_arguments(config))
    model = create(config.name, lambda: timm.create_model(config.name, **kwargs))
    if config.init is not None:
        taken = warm_start(model, find_weights(config.init))
        _check_same_architecture(config, model, taken)
        if report:
            print(taken)
    elif report:
        print(f"{config.name} from scratch; to start from trained weights give --model.init")
    return model


def _check_same_architecture(config: ModelConfig, model: nn.Module, report: WarmStartReport) -> None:
    """A checkpoint of another model is a start if it fills half of this one, as vHeat does TailProp; else it is a mistake."""
    theirs, ours = _architecture(str(config.init)), model.state_dict()
    share = sum(ours[name].numel() for name in report.taken) / sum(value.numel() for value in ours.values())
    if theirs not in (None, config.name) and share < 0.5:
        fills = f"only {share:.0%}" if share > 0.005 else "nothing"
        raise ValueError(
            f"{config.init} is a {theirs} and fills {fills} of {config.name}; give --model.name {theirs}, or leave out "
            "--model.init"
        )


def _architecture(where: str) -> str | None:
    """The model that weights of ours name: in themselves, or in the settings of the run they lie in."""
    weights = find_weights(where)
    if weights.suffix == ".safetensors":
        return read_metadata(weights).get("architecture")
    if weights.name not in ("best.pt", "last.pt"):
        return None
    try:
        return read_config(weights.parent)["model"].get("name")
    except ValueError:  # no run of ours
        return None
