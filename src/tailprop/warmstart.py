"""Weights from elsewhere: vHeat's published checkpoints into our modules.

`checkpoint_filter_fn` is timm's hook, so `vheat_*` loads a published vHeat file as it is. `warm_start` gives any model of ours
what fits of a checkpoint, and reports the rest.
"""

import re
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tailprop.rivals import resample_embedding

__all__ = ["WarmStartReport", "checkpoint_filter_fn", "read_state_dict", "warm_start"]

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


@dataclass(frozen=True)
class WarmStartReport:
    """What `warm_start` did, parameter by parameter."""

    taken: tuple[str, ...]  # ours, now holding the checkpoint's values
    misfits: tuple[str, ...]  # in both, with different shapes
    unused: tuple[str, ...]  # in the checkpoint, unknown to the model
    fresh: tuple[str, ...]  # ours, left as they were

    def __str__(self) -> str:
        lines = [f"warm start: {len(self.taken)} of {len(self.taken) + len(self.fresh)} tensors taken"]
        for label, names in (
            ("different shape", self.misfits),
            ("not used by this model", self.unused),
            ("left at their initial values", self.fresh),
        ):
            if names:
                shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
                lines.append(f"  {label} ({len(names)}): {shown}")
        return "\n".join(lines)


# vHeat's training pickles its yacs configuration beside the weights. Read as a plain dictionary it is harmless, and
# weights_only loading, ours and timm's, gets past it without importing or running anything.
torch.serialization.add_safe_globals([(OrderedDict, "yacs.config.CfgNode")])


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """What a .safetensors file or a PyTorch checkpoint holds, read without executing anything that is in it."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old pickles: what matters is an error below
            content = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # damage makes an unpickler trip in many ways: struct.error, AssertionError, TypeError
        raise ValueError(f"{path} is damaged, or holds more than weights and was not executed ({_reason(error)})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no state dict")
    return content


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The weights in a .safetensors file or a PyTorch checkpoint; of a training checkpoint, those it was evaluated with."""
    state = read_checkpoint(path)
    for key in ("ema", "state_dict", "model"):
        if isinstance(state.get(key), dict):
            state = state[key]
    if not any(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{path} holds no state dict")
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _reason(error: Exception) -> str:
    """Why it cannot be read, without PyTorch's advice to execute what is in it."""
    text = str(error).strip()
    if asked := re.search(r"GLOBAL (\S+) (?:was not|whose module)", text):
        return f"it asks for {asked[1]}"
    if "Weights only load failed" in text:
        return "no pickle of weights"
    return re.split(r"\. |\n", text)[0] or type(error).__name__


def warm_start(model: nn.Module, source: Mapping[str, Tensor] | str | Path) -> WarmStartReport:
    """Copy into `model` everything that fits of a state dict or checkpoint file, vHeat's names or ours; report the rest."""
    state_dict = read_state_dict(source) if isinstance(source, str | Path) else source
    theirs = checkpoint_filter_fn(dict(state_dict), model)
    ours = model.state_dict()
    fits = {name: v for name, v in theirs.items() if name in ours and ours[name].shape == v.shape}
    if not fits:
        raise ValueError(
            "nothing in this checkpoint fits the model: it has "
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
    """timm's hook: a vHeat state dict under our names, its embeddings at the model's resolution; ours unchanged."""
    if "patch_embed.conv1.weight" not in state_dict:
        return state_dict
    ours = model.state_dict()
    renamed = {}
    for name, value in state_dict.items():
        name = _rename_vheat(name)
        if ".mlp." in name and value.ndim == 4:  # 1x1 convolutions there, linears here
            value = value.flatten(1)
        if name.endswith("freq_embed") and name in ours and ours[name].shape != value.shape:
            value = _resize_embedding(value, ours[name].shape)
        renamed[name] = value
    return renamed


def _rename_vheat(name: str) -> str:
    if match := _VHEAT_DOWNSAMPLE.match(name):  # at the end of stage i there, at the start of stage i + 1 here
        stage, part, leaf = match.groups()
        return f"stages.{int(stage) + 1}.downsample.{'conv' if part == '0' else 'norm'}.{leaf}"
    for pattern, ours in _VHEAT_RULES:
        name = re.sub(pattern, ours, name)
    return name


def _resize_embedding(value: Tensor, shape: torch.Size) -> Tensor:
    if value.shape[-1] != shape[-1]:
        return value  # another width: let the loader say so
    return resample_embedding(value, torch.empty(1, *shape, device="meta"))
