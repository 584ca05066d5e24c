"""INT8: static quantisation by onnxruntime, with calibration images.

Products with stored weights are quantised, convolutions and linear layers, weights for each output channel. Cosine transforms
are not: their matrices are computed for the size of the image, and 8 bits of them would leave 8 bits of every map.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from torch import Tensor

from tailprop.engine.exported import KEY, Description
from tailprop.utils.files import explain_write_errors

__all__ = ["quantize"]

_PRODUCTS: Final = ("Conv", "MatMul", "Gemm")


def quantize(source: Path, target: Path, about: Description, inputs: Iterator[Tensor]) -> int:
    """Write an INT8 form of an ONNX file; returns how many products are quantised."""
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    model = onnx.load(source)
    names = _named_products(model)
    if not names:
        raise ValueError(f"{about.architecture} has no products with stored weights, so there is nothing to quantise")
    with TemporaryDirectory() as folder, _quiet():
        prepared, result = Path(folder, "prepared.onnx"), Path(folder, "int8.onnx")
        with explain_write_errors(prepared):
            onnx.save(model, prepared)
        quantize_static(
            prepared,
            result,
            _Images(model.graph.input[0].name, inputs),
            quant_format=QuantFormat.QDQ,
            nodes_to_quantize=names,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            # 8-bit sums of pairs overflow on processors without VNNI unless weights have 7 bits
            reduce_range=not _has_vnni(),
        )
        quantised = onnx.load(result)
    del quantised.metadata_props[:]
    onnx.helper.set_model_props(quantised, {KEY: about.to_json()})
    with explain_write_errors(target):
        onnx.save(quantised, target)
    return len(names)


def _named_products(model: Any) -> list[str]:
    """The names of the products whose second factor is stored; nodes without a name are given one."""
    stored = {tensor.name for tensor in model.graph.initializer}
    names = []
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"node_{index}"
        if node.op_type in _PRODUCTS and node.input[1] in stored:
            names.append(node.name)
    return names


class _Images:
    """The calibration inputs, as onnxruntime asks for them."""

    def __init__(self, name: str, inputs: Iterator[Tensor]) -> None:
        self.name, self.inputs = name, inputs

    def get_next(self) -> dict[str, np.ndarray] | None:
        x = next(self.inputs, None)
        return None if x is None else {self.name: x.numpy()}

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        while (item := self.get_next()) is not None:
            yield item


def _has_vnni() -> bool:
    info = Path("/proc/cpuinfo")
    return info.exists() and any(word in info.read_text()[:8192] for word in ("avx512_vnni", "avx_vnni", "asimddp"))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)  # advice to preprocess, which graphs of any size do not pass
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
