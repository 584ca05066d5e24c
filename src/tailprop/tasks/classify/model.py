"""The classifier: any model of timm, from scratch or from a checkpoint."""

import timm
from torch import nn

import tailprop.backbone.model  # noqa: F401 - registers the models
from tailprop.backbone.weights import WarmStartReport
from tailprop.engine.checkpoint import read_state_dict, warm_start
from tailprop.engine.config import ModelConfig
from tailprop.engine.run_settings import read_config, read_notes, weights_file
from tailprop.utils.errors import memory_missing

__all__ = ["create_model"]


def create_model(config: ModelConfig, num_classes: int, report: bool = True) -> nn.Module:
    """The network, from scratch or from a checkpoint."""
    settings = dict(config.args)
    if config.drop_path is not None:
        settings["drop_path_rate"] = config.drop_path
    try:
        model = timm.create_model(config.name, num_classes=num_classes, in_chans=config.in_chans, **settings)
    except (TypeError, RuntimeError) as error:  # an argument it does not take, a tag of weights that there are not
        if memory_missing(error):
            raise
        raise ValueError(f"timm cannot make {config.name}: {error}") from None
    if config.init is not None:
        taken = warm_start(model, read_state_dict(weights_file(config.init)))
        _refuse_another_architecture(config, model, taken)
        if report:
            print(taken)
    elif report:
        print(f"{config.name} from scratch; to start from trained weights give --model.init")
    return model


def _refuse_another_architecture(config: ModelConfig, model: nn.Module, report: WarmStartReport) -> None:
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
    weights = weights_file(where)
    if weights.suffix == ".safetensors":
        return read_notes(weights).get("architecture")
    if weights.name not in ("best.pt", "last.pt"):
        return None
    try:
        return read_config(weights.parent)["model"].get("name")
    except ValueError:  # no run of ours
        return None
