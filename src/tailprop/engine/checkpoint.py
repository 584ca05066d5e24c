"""Checkpoints: written atomically with finite numbers only, verified before they are read, read without executing code."""

import argparse
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tailprop.backbone.weights import WarmStartReport, load_matching
from tailprop.engine.integrity import UNSEALED, check_all_finite, check_intact, seal
from tailprop.utils.files import write_atomically

__all__ = ["load", "read_checkpoint", "read_state_dict", "save", "save_tensors", "save_weights", "warm_start"]

_FORMAT = 4


def save(path: Path, payload: dict[str, Any], also: Path | None = None) -> None:
    """Write a checkpoint; with `also`, a copy appears under that second path first. Raises if a tensor is not finite."""
    check_all_finite(payload)

    def write(part: Path) -> None:
        torch.save(payload | {"format": _FORMAT}, part)

    write_atomically(path, write, also, follow=True)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint written by `save`."""
    try:
        payload = read_checkpoint(path)
    except ValueError as error:
        raise ValueError(f"{error}; to start from other weights of the run, use --model.init and another --run.out") from None
    if payload.get("format") == 3:
        return _upgrade(payload)
    if payload.get("format") != _FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this version of tailprop; to start from its weights, use --model.init")
    return payload


def _upgrade(payload: dict[str, Any]) -> dict[str, Any]:
    """Convert a checkpoint of format 3. Its settings had other names, so their hash is dropped and config.yaml is compared."""
    position = dict(payload["position"])
    position["global_step"] = position.pop("total")
    return payload | {"position": position, "config_hash": None}


def save_weights(path: Path, model: nn.Module, metadata: dict[str, str]) -> None:
    """Export the weights alone as safetensors, which timm and other libraries can load."""
    save_tensors(path, model.state_dict(), metadata)


def save_tensors(path: Path, state: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors as safetensors; "format" is what the transformers library asks for."""
    weights = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    check_all_finite(weights)

    def write(part: Path) -> None:
        save_file(weights, part, {"format": "pt", **metadata, **UNSEALED})
        seal(part)

    write_atomically(path, write, follow=True)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The content of a .safetensors file or a PyTorch checkpoint, read without executing code in it."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}")
    check_intact(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old pickles; errors are handled below
            content = load_file(path) if path.suffix == ".safetensors" else _load_pickle(path)
    except OSError:
        raise
    except Exception as error:  # corrupt files raise many types: struct.error, AssertionError, TypeError
        raise ValueError(f"{path} is corrupt, or contains more than weights and was not executed ({_reason(error)})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not contain a state dict")
    return content


def _load_pickle(path: Path) -> Any:
    """Read a PyTorch checkpoint without executing code; timm's also contain their training options, a plain Namespace."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, "cpu", weights_only=True)


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The weights in a .safetensors file or a PyTorch checkpoint; the EMA weights if a training checkpoint has them."""
    state = read_checkpoint(path)
    for key in ("ema", "state_dict_ema", "model_ema", "state_dict", "model"):
        if isinstance(state.get(key), dict):
            state = state[key]
    if not any(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{path} does not contain a state dict")
    return {name: value for name, value in state.items() if isinstance(name, str) and isinstance(value, Tensor)}


def warm_start(model: nn.Module, source: Mapping[str, Tensor] | str | Path) -> WarmStartReport:
    """Copy the matching weights of a state dict or a checkpoint file, with vHeat's names or ours; report the rest."""
    return load_matching(model, read_state_dict(source) if isinstance(source, str | Path) else source)


def _reason(error: Exception) -> str:
    """The reason a file cannot be read, without PyTorch's advice to execute the code in it."""
    text = str(error).strip()
    if asked := re.search(r"GLOBAL (\S+) (?:was not|whose module)", text):
        return f"it imports {asked[1]}; if you trust it, save its state_dict alone with timm's clean_checkpoint.py"
    if "Weights only load failed" in text:
        return "not a pickle of weights"
    return re.split(r"\. |\n", text)[0] or type(error).__name__
