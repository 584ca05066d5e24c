"""Exported networks: the description in their metadata, and running them with onnxruntime. Nothing here imports PyTorch.

A file that `tailprop export` writes describes itself: task, network, the values that it takes, class names, and what the task
needs before and after the network. The description comes from outside, so every value is checked before it is used.
"""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from tailprop.engine.onnx_file import read_onnx_metadata
from tailprop.engine.settings import build, check_numbers
from tailprop.utils.errors import first_line
from tailprop.utils.parsing import parse_json
from tailprop.utils.text import excerpt, printable
from tailprop.utils.validation import check_between

__all__ = ["KEY", "Description", "InputSpec", "OnnxModel", "describe_exported", "is_exported", "read_description"]

KEY: Final = "tailprop"  # of the metadata
_FORMAT: Final = 1
_MOST_NAMES, _LONGEST_NAME = 100_000, 1_000
Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class InputSpec:
    """What the network takes: images (batch, channels, height, width), float32, white at 1, then (x - mean) / std."""

    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    least_px: int = 1
    """Smallest side that the network takes."""

    def check(self) -> None:
        check_between("input.channels", self.channels, 1, 64)
        check_between("input.least_px", self.least_px, 1, 4096)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels or not all(math.isfinite(v) for v in values):
                raise ValueError(f"input.{name} must be {self.channels} finite numbers")
        if min(self.std) <= 0:
            raise ValueError("input.std must be positive")


@dataclass(frozen=True)
class Description:
    """What an exported file says about itself."""

    task: str
    architecture: str
    input: InputSpec
    format: int = _FORMAT
    part: Literal["network", "features", "pyramid"] = "network"
    """network: all of it; features: the maps of the backbone; pyramid: a detector's backbone and feature pyramid."""
    precision: Literal["fp32", "int8", "bf16"] = "fp32"
    names: tuple[str, ...] = ()
    """Class names."""
    outputs: tuple[str, ...] = ("output",)
    settings: dict[str, Any] = field(default_factory=dict)
    """What the task needs before and after the network."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Version, commit and command of the run, checks and metrics of the export."""

    def check(self) -> None:
        if self.format != _FORMAT:
            raise ValueError(f"its format is {excerpt(self.format)}, this version of tailprop reads {_FORMAT}")
        if not self.task.isidentifier():
            raise ValueError(f"its task is {excerpt(self.task)}")
        self.input.check()
        if len(self.names) > _MOST_NAMES or any(len(name) > _LONGEST_NAME for name in self.names):
            raise ValueError("it has too many class names, or too long ones")
        if not 1 <= len(self.outputs) <= 64:
            raise ValueError("it must have 1 to 64 outputs")
        check_numbers(self.settings, "settings.")

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=True)


def is_exported(where: str | Path) -> bool:
    """Whether this is the path of an ONNX file."""
    path = Path(where)
    return path.suffix.lower() == ".onnx" and path.is_file()


def read_description(path: Path) -> Description:
    """The description in an ONNX file; raises in one line if there is none, or if it is not valid."""
    text = read_onnx_metadata(path).get(KEY)
    if text is None:
        raise ValueError(f"{path} was not exported by tailprop: its metadata do not describe it")
    where = f"the description in {path}"
    try:
        values = parse_json(text, where)
        if not isinstance(values, dict):
            raise ValueError("it is not a mapping")
        found = build(Description, values)
        found.check()
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{where} is not usable: {printable(first_line(error))}") from None
    return found


def describe_exported(path: Path) -> dict[str, Any]:
    """What an exported file says about itself, as plain values, with its size in bytes: for `tailprop info`."""
    return asdict(read_description(path)) | {"bytes": path.stat().st_size}


class OnnxModel:
    """An exported network, run by onnxruntime alone.

    Args:
        path: An ONNX file written by `tailprop export`.
        threads: CPU threads; 0 = onnxruntime's default.
    """

    def __init__(self, path: Path, threads: int = 0) -> None:
        import onnxruntime

        self.path, self.about = path, read_description(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class for each of its codes
            raise ValueError(f"onnxruntime cannot load {path}: {printable(first_line(error))}") from None
        inputs, outputs = self._session.get_inputs(), [output.name for output in self._session.get_outputs()]
        if len(inputs) != 1 or inputs[0].type != "tensor(float)" or tuple(outputs) != self.about.outputs:
            raise ValueError(f"{path} does not have the inputs and outputs that its description names; export it again")
        self._input = inputs[0].name

    def __call__(self, images: Array) -> list[Array]:
        """Outputs for normalised images, (B, C, H, W)."""
        try:
            outputs = self._session.run(None, {self._input: np.ascontiguousarray(images, dtype=np.float32)})
        except Exception as error:
            raise ValueError(f"{self.path} failed for images of {images.shape}: {printable(first_line(error))}") from None
        if not all(isinstance(y, np.ndarray) and np.isfinite(y).all() for y in outputs):
            raise ValueError(f"the output of {self.path} is not finite; the file is corrupt, or was quantised badly")
        return outputs

    def single(self, images: Array, channels: int | None = None, scale: float | None = None) -> Array:
        """The only output, after a check of its shape.

        Args:
            images: Normalised images, (B, C, H, W).
            channels: Its second size, for example the number of classes.
            scale: Its height and width over those of the images; None = it has none, (B, channels).
        """
        (found,) = self(images)
        size = () if scale is None else tuple(int(scale * side) for side in images.shape[2:])
        if found.shape != (len(images), channels, *size):
            raise ValueError(f"{self.path} returns {found.shape}, not what its description says; export it again")
        return found

    def normalised(self, images: Array) -> Array:
        """Images (B, C, H, W) from 0 to 1, minus mean, over standard deviation."""
        mean, std = (np.array(v, dtype=np.float32)[:, None, None] for v in (self.about.input.mean, self.about.input.std))
        return (images - mean) / std
