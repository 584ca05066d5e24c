"""Loading of external weights: vHeat's published checkpoints, and warm starts.

`checkpoint_filter_fn` is timm's hook, so `vheat_*` loads a published vHeat file unchanged. `load_matching` copies the tensors
of a checkpoint that fit a model, and reports the rest.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from .mixers import resample_embedding

__all__ = ["WarmStartReport", "checkpoint_filter_fn", "load_matching"]

_VHEAT_RULES: Final = (
    (r"^patch_embed\.(conv\d)\.", r"stem.\1."),
    (r"^patch_embed\.(norm\d)\.1\.", r"stem.\1."),  # vHeat wraps its norms between two permutations
    (r"^layers\.(\d+)\.(\d+)\.op\.to_k\.0\.", r"stages.\1.layers.\2.block.mixer.to_k."),
    (r"^layers\.(\d+)\.(\d+)\.op\.dwconv\.", r"stages.\1.layers.\2.block.dwconv."),
    (r"^layers\.(\d+)\.(\d+)\.op\.linear\.", r"stages.\1.layers.\2.block.in_proj."),
    (r"^layers\.(\d+)\.(\d+)\.op\.out_norm\.", r"stages.\1.layers.\2.block.norm."),
    (r"^layers\.(\d+)\.(\d+)\.op\.out_linear\.", r"stages.\1.layers.\2.block.out_proj."),
    (r"^layers\.(\d+)\.(\d+)\.(norm\d|mlp|gamma\d)", r"stages.\1.layers.\2.\3"),
    (r"^freq_embed\.(\d+)$", r"stages.\1.freq_embed"),
    (r"^classifier\.0\.", "norm."),
    (r"^classifier\.3\.", "head.fc."),
)
_VHEAT_DOWNSAMPLE: Final = re.compile(r"^layers\.(\d+)\.\d+\.([01])\.(\w+)$")
_LARGER: Final = ("backbone.body.model.", "backbone.model.")  # names of a backbone in our detectors and segmenters


@dataclass(frozen=True)
class WarmStartReport:
    """The result of a warm start, by parameter name."""

    taken: tuple[str, ...]  # loaded from the checkpoint
    misfits: tuple[str, ...]  # in both, with different shapes
    unused: tuple[str, ...]  # in the checkpoint, but not in the model
    fresh: tuple[str, ...]  # in the model, but not loaded

    def __str__(self) -> str:
        lines = [f"warm start: {len(self.taken)} of {len(self.taken) + len(self.fresh)} tensors loaded"]
        for label, names in (
            ("different shape", self.misfits),
            ("not used by this model", self.unused),
            ("left at their initial values", self.fresh),
        ):
            if names:
                listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
                lines.append(f"  {label} ({len(names)}): {listed}")
        return "\n".join(lines)


# vHeat's checkpoints also contain a pickled yacs configuration. Mapped to a plain dictionary it is harmless, and weights_only
# loading, ours and timm's, then works without importing or executing anything.
torch.serialization.add_safe_globals([(OrderedDict, "yacs.config.CfgNode")])


def load_matching(model: nn.Module, state_dict: Mapping[str, Tensor]) -> WarmStartReport:
    """Copy into `model` every matching tensor of a state dict, with vHeat's names or ours; report the rest."""
    theirs = _renamed(_backbone_of(dict(state_dict), model), model)
    ours = model.state_dict()
    fits = {name: v for name, v in theirs.items() if name in ours and ours[name].shape == v.shape}
    if not fits:
        raise ValueError(
            "no tensor of this checkpoint fits the model: it has "
            f"{', '.join(list(theirs)[:3])}, ... where the model has {', '.join(list(ours)[:3])}, ..."
        )
    model.load_state_dict(fits, strict=False)
    return WarmStartReport(
        taken=tuple(fits),
        misfits=tuple(name for name in theirs if name in ours and name not in fits),
        unused=tuple(name for name in theirs if name not in ours),
        fresh=tuple(name for name in ours if name not in fits),
    )


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """timm's hook: rename a vHeat state dict and resample its embeddings to the model's resolution; ours is unchanged.

    Of a detector or a segmenter it takes the backbone, whose last norm and classifier do not exist there.
    """
    found = _backbone_of(state_dict, model)
    if found is not state_dict:
        return {name: v for name, v in model.state_dict().items() if name.startswith(("norm.", "head."))} | found
    return _renamed(state_dict, model)


def _renamed(state_dict: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    if "patch_embed.conv1.weight" not in state_dict:
        return state_dict
    ours = model.state_dict()
    renamed = {}
    for name, value in state_dict.items():
        name = _rename_vheat(name)
        if ".mlp." in name and value.ndim == 4:  # 1x1 convolutions in vHeat, linears here
            value = value.flatten(1)
        if name.endswith("freq_embed") and name in ours and ours[name].shape != value.shape:
            value = _resize_embedding(value, ours[name].shape)
        renamed[name] = value
    return renamed


def _backbone_of(state_dict: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    prefix = next((p for p in _LARGER if f"{p}stem.conv1.weight" in state_dict), None)
    if prefix is None or not hasattr(model, "stem"):  # other weights, or the whole of such a network
        return state_dict
    return {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}


def _rename_vheat(name: str) -> str:
    if match := _VHEAT_DOWNSAMPLE.match(name):  # at the end of stage i in vHeat, at the start of stage i + 1 here
        stage, part, leaf = match.groups()
        return f"stages.{int(stage) + 1}.downsample.{'conv' if part == '0' else 'norm'}.{leaf}"
    for pattern, ours in _VHEAT_RULES:
        name = re.sub(pattern, ours, name)
    return name


def _resize_embedding(value: Tensor, shape: torch.Size) -> Tensor:
    if value.shape[-1] != shape[-1]:
        return value  # another width: load_state_dict reports it
    return resample_embedding(value, torch.empty(1, *shape, device="meta"))
