"""Values that mixers learn, such as propagation lengths, as they are logged after every epoch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["learned_values", "observe_mixers"]


@contextmanager
def observe_mixers(model: nn.Module, enabled: bool = True) -> Iterator[None]:
    """Let the mixers keep the means of what they predict for the images of this context, until `learned_values`."""
    for module in _with_method(model, "observe").values() if enabled else ():
        module.observe(True)
    yield


@torch.no_grad()
def learned_values(model: nn.Module) -> dict[str, dict[str, list[float]]]:
    """Minimum, median and maximum over the channels of everything that each mixer learns, by the name of its module."""
    learned = {name: module.learned() for name, module in _with_method(model, "learned").items()}
    for module in _with_method(model, "observe").values():
        module.observe(False)
    return {name: {quantity: _spread(value) for quantity, value in values.items()} for name, values in learned.items()}


def _with_method(model: nn.Module, method: str) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if hasattr(module, method)}


def _spread(value: Tensor) -> list[float]:
    return [float(f"{v:.6g}") for v in torch.stack([value.min(), value.median(), value.max()]).tolist()]
