"""Code that the tasks share to predict with an exported file: numpy in place of PyTorch, which is never imported here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from tailprop.engine.exported import Description, OnnxModel
from tailprop.engine.settings import build
from tailprop.utils.errors import first_line
from tailprop.utils.text import printable

__all__ = ["Array", "open_exported", "resize_bilinear", "task_settings", "to_unit_chw"]

T = TypeVar("T")
Array = npt.NDArray[np.float32]


def open_exported(options: Any, unsupported: Sequence[str] = ()) -> OnnxModel:
    """The network that the options of `predict` name, after a check that they ask for nothing that it cannot do.

    Args:
        options: Options of `tailprop predict`.
        unsupported: Names of options that an exported file of the task does not have; they must have their defaults.
    """
    for name in ("precision", *unsupported):
        if getattr(options, name) != getattr(type(options), name):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} is not supported for an exported file, whose graph is fixed; leave it out")
    if options.device not in ("auto", "cpu"):
        raise ValueError(f"an exported file runs on the CPU; leave --device {options.device} out")
    model = OnnxModel(Path(options.checkpoint), options.threads)
    if model.about.part != "network":
        raise ValueError(
            f"{options.checkpoint} returns feature maps ({model.about.part}) and no predictions; export the whole network"
        )
    return model


def task_settings(about: Description, kind: type[T], where: object) -> T:
    """The settings of the task in a description, checked."""
    try:
        settings = build(kind, about.settings)
        settings.check()  # type: ignore[attr-defined] # every settings class of an exported file has it
    except (ValueError, TypeError) as error:
        raise ValueError(f"the description in {where} is not usable: {printable(first_line(error))}") from None
    return settings


def to_unit_chw(image: Image.Image) -> Array:
    """An image as (C, H, W), float32 from 0 to 1."""
    values = np.asarray(image)
    values = values[..., None] if values.ndim == 2 else values
    return np.ascontiguousarray(np.moveaxis(values, -1, 0), dtype=np.float32) / np.float32(255)


def resize_bilinear(x: Array, size: tuple[int, int]) -> Array:
    """Bilinear without antialiasing, as `torch.nn.functional.interpolate` with align_corners=False. (.., h, w) -> (.., H, W)"""
    for axis, length in zip((-2, -1), size, strict=True):
        x = _along(x, axis, length)
    return x


def _along(x: Array, axis: int, length: int) -> Array:
    n = x.shape[axis]
    if n == length:
        return x
    at = np.maximum((np.arange(length, dtype=np.float32) + np.float32(0.5)) * np.float32(n / length) - np.float32(0.5), 0)
    low = np.minimum(at.astype(np.int64), n - 1)
    high = np.minimum(low + 1, n - 1)
    share = (at - low).astype(np.float32)
    share = share[:, None] if axis == -2 else share
    return x.take(low, axis) * (1 - share) + x.take(high, axis) * share
