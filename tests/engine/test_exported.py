"""Exported files from others: whatever is wrong with one is said in one line, mostly before onnxruntime sees it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tailprop.engine.export import save_checked
from tailprop.engine.exported import KEY, Description, InputSpec, OnnxModel, describe_exported, is_exported, read_description
from tailprop.engine.onnx_file import read_onnx_metadata

ABOUT = Description("classify", "tailprop_pico", InputSpec(3, (0.5,) * 3, (0.2,) * 3), names=("a", "b"), outputs=("y",))


def write(path: Path, text: str | None = None, change: Callable[[Any], object] = lambda _model: None) -> Path:
    """An ONNX file that takes the first two channels' means, (B, 3, H, W) -> (B, 2)."""
    shape = ["batch", 3, "height", "width"]
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["m"], keepdims=0),
        helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]
    stored = [
        helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3]),
        helper.make_tensor("w", TensorProto.FLOAT, [3, 2], [1, 0, 0, 1, 0, 0]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {KEY: ABOUT.to_json() if text is None else text})
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def test_description_round_trip_and_outputs(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx")
    assert is_exported(path)
    assert read_description(path) == ABOUT
    assert describe_exported(path)["bytes"] == path.stat().st_size
    model = OnnxModel(path, threads=1)
    images = model.normalised(np.full((2, 3, 4, 5), 0.9, dtype=np.float32))
    np.testing.assert_allclose(model.single(images, 2), 2.0, rtol=1e-6)
    with pytest.raises(ValueError, match="not what its description says"):
        model.single(images, 3)


def test_own_reader_finds_what_onnx_finds(tmp_path: Path) -> None:
    def add(model: Any) -> None:
        helper.set_model_props(model, {"a": "1", "long": "x" * 100_000, "ü": "ß"})

    path = write(tmp_path / "model.onnx", change=add)
    assert read_onnx_metadata(path) == {entry.key: entry.value for entry in onnx.load(path).metadata_props}


HOSTILE: dict[str, Any] = {
    "not json": "{",
    "nested": "[" * 100_000,
    "a list": "[1]",
    "unknown entry": ABOUT.to_json()[:-1] + ', "more": 1}',
    "format": json.dumps({**json.loads(ABOUT.to_json()), "format": 99}),
    "task": json.dumps({**json.loads(ABOUT.to_json()), "task": "../classify"}),
    "channels": json.dumps({**json.loads(ABOUT.to_json()), "input": {"channels": 10**9, "mean": [0], "std": [1]}}),
    "std": json.dumps({**json.loads(ABOUT.to_json()), "input": {"channels": 1, "mean": [0.0], "std": [0.0]}}),
    "infinite": json.dumps({**json.loads(ABOUT.to_json()), "input": {"channels": 1, "mean": [1e999], "std": [1.0]}}),
    "names": json.dumps({**json.loads(ABOUT.to_json()), "names": ["x" * 5_000]}),
    "number": json.dumps({**json.loads(ABOUT.to_json()), "settings": {"size_px": 10**30}}),
    "names of numbers": json.dumps({**json.loads(ABOUT.to_json()), "names": [1, 2]}),
    "escape": json.dumps({**json.loads(ABOUT.to_json()), "architecture": "\x1b[31m"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_description_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", HOSTILE[name])
    with pytest.raises(ValueError, match=r"model\.onnx is not (usable|valid)") as caught:
        read_description(path)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_damaged_files_are_refused_in_one_line(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.onnx").read_bytes()
    path = tmp_path / "model.onnx"
    for content in (b"", b"hello world, this is text", b"\xff" * 50, whole[:-7], b"PK\x03\x04" + whole):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"model\.onnx") as caught:
            read_description(path)
        assert "\n" not in str(caught.value)


def test_flipped_bit_is_refused(tmp_path: Path) -> None:
    """In every byte: only one in the marker of the hash is not noticed, and it changes nothing else."""
    path, unsealed = tmp_path / "model.onnx", write(tmp_path / "unsealed.onnx").read_bytes()
    save_checked(path, "model.onnx", lambda part: part.write_bytes(unsealed), lambda _: 0.0)
    onnx.checker.check_model(onnx.load(path))
    assert OnnxModel(path, threads=1).about == ABOUT
    whole, passed, messages = path.read_bytes(), [], []
    assert whole.startswith(unsealed)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            assert read_description(path) == ABOUT
            passed.append(place)
        except ValueError as error:
            messages.append(str(error))
    assert all("model.onnx" in message and "\n" not in message for message in messages)
    assert all(len(unsealed) <= place < len(whole) - 64 for place in passed)


def test_file_without_description_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", change=lambda model: model.ClearField("metadata_props"))
    with pytest.raises(ValueError, match="was not exported by tailprop"):
        read_description(path)


def in_initializer(model: Any) -> Any:
    return model.graph.initializer[1]


def in_attribute(model: Any) -> Any:
    tensor = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.0])
    model.graph.node.append(helper.make_node("Constant", [], ["c"], value=tensor))
    return model.graph.node[-1].attribute[0].t


def in_subgraph(model: Any) -> Any:
    tensor = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.0])
    inner = helper.make_graph([], "inner", [], [], [tensor])
    model.graph.node.append(helper.make_node("If", ["w"], ["c"], then_branch=inner, else_branch=inner))
    return model.graph.node[-1].attribute[1].g.initializer[0]


@pytest.mark.parametrize("place", [in_initializer, in_attribute, in_subgraph])
def test_tensors_in_other_files_are_refused(place: Callable[[Any], Any], tmp_path: Path) -> None:
    def move_out(model: Any) -> None:
        tensor = place(model)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", "../../etc/passwd"

    path = write(tmp_path / "model.onnx", change=move_out)
    with pytest.raises(ValueError, match="keeps tensors in other files"):
        read_description(path)


def test_outputs_that_the_description_does_not_name_are_refused(tmp_path: Path) -> None:
    def rename(model: Any) -> None:
        model.graph.output[0].name = model.graph.node[1].output[0] = "z"

    with pytest.raises(ValueError, match="inputs and outputs that its description names"):
        OnnxModel(write(tmp_path / "model.onnx", change=rename))


def test_output_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    model = OnnxModel(write(tmp_path / "model.onnx"), threads=1)
    with pytest.raises(ValueError, match="is not finite"):
        model(np.full((1, 3, 4, 4), np.inf, dtype=np.float32))
