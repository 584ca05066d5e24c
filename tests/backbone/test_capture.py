"""Captured graphs and precisions: compile, export, ONNX, BF16."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import timm
import torch
import torch.fx
from torch import nn

from tests.backbone.test_model import tiny_net

OTHER_SIZES = [(96, 64), (64, 64), (65, 131), (33, 40)]


def seeded_tiny() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("tailprop_tiny", num_classes=10).eval()


def test_compile_static() -> None:
    """Two stages, with and without downsampling: inductor takes minutes for TailProp-T, whose graph is captured whole below."""
    model, x = tiny_net(depths=(1, 1), dims=(16, 32)).eval(), torch.randn(2, 3, 64, 64)
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-4)


def test_compile_dynamic_is_one_graph_for_all_sizes() -> None:
    model = seeded_tiny()
    graphs = []

    def count(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=count)
    with torch.no_grad():
        for h, w in OTHER_SIZES:
            x = torch.randn(2, 3, h, w)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-4)
    assert len(graphs) == 1


def test_compile_dynamic_with_inductor() -> None:
    """Two stages: code for symbolic sizes takes inductor about half a minute a stage on a CPU."""
    model = tiny_net(depths=(1, 1), dims=(16, 32)).eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for h, w in OTHER_SIZES:
            x = torch.randn(2, 3, h, w)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-4)


SPATIAL = dict(mixer="multiscale", mixer_args=dict(gate="spatial"))
TRAINED = ["tailprop", "multiscale", "adaptive_alpha", "heat", "wave", "gfnet", "afno", "conv7", "conv31", "pool"]


@pytest.mark.parametrize("settings", [*(dict(mixer=mixer) for mixer in TRAINED), SPATIAL], ids=[*TRAINED, "spatial"])
def test_compiled_training_step(settings: dict[str, Any]) -> None:
    model, x = tiny_net(**settings).train(), torch.randn(2, 3, 48, 64)
    grads = []
    for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        model.zero_grad()
        call(x).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-3, atol=1e-4)


def test_eager_mode_works_after_capture() -> None:
    """No tensor of a captured graph may stay in the caches."""
    model, x = tiny_net().eval(), torch.randn(1, 3, 40, 56)
    before = model(x)
    torch.export.export(model, (x,))
    torch.testing.assert_close(model(x), before, rtol=0, atol=0)


def dynamic_size() -> dict[int, torch.export.Dim]:
    """From 33 px: at 32 the last map is a single position, and PyTorch specializes graphs for size 1."""
    return {2: torch.export.Dim("height", min=33, max=1024), 3: torch.export.Dim("width", min=33, max=1024)}


@pytest.mark.parametrize("settings", [dict(), dict(mixer="multiscale"), SPATIAL], ids=["tailprop", "multiscale", "spatial"])
def test_export_with_dynamic_size(settings: dict[str, Any]) -> None:
    model = tiny_net(**settings).eval() if settings else seeded_tiny()
    program = torch.export.export(model, (torch.randn(2, 3, 72, 88),), dynamic_shapes=(dynamic_size(),)).module()
    with torch.no_grad():
        for h, w in OTHER_SIZES:
            x = torch.randn(2, 3, h, w)
            torch.testing.assert_close(program(x), model(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mixer", ["tailprop", "multiscale"])
def test_onnx_at_several_sizes(mixer: str, tmp_path: Path) -> None:
    model, path = tiny_net(mixer=mixer).eval(), tmp_path / "model.onnx"
    torch.onnx.export(model, (torch.randn(1, 3, 64, 96),), path, dynamo=True, dynamic_shapes=(dynamic_size(),), verbose=False)
    session = onnxruntime.InferenceSession(str(path))
    for h, w in [(64, 96), *OTHER_SIZES]:
        x = torch.randn(1, 3, h, w)
        (ours,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        np.testing.assert_allclose(ours, model(x).detach().numpy(), rtol=1e-3, atol=1e-4)


def test_constants_are_shared_by_the_layers_of_a_stage() -> None:
    """A cosine matrix for each axis and stage, however many layers there are; eager mode is not changed."""
    model, x = tiny_net(depths=(3, 2), dims=(16, 32)).eval(), torch.randn(2, 3, 72, 88)
    expected = model(x)
    program = torch.export.export(model, (x,), dynamic_shapes=(dynamic_size(),))
    assert sum(node.target is torch.ops.aten.cos.default for node in program.graph.nodes) == 2 * 2
    torch.testing.assert_close(program.module()(x), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")
def test_old_onnx_exporter_makes_a_graph_for_one_size(tmp_path: Path) -> None:
    model, x, path = tiny_net().eval(), torch.randn(1, 3, 48, 64), tmp_path / "model.onnx"
    torch.onnx.export(model, (x,), path, dynamo=False)
    session = onnxruntime.InferenceSession(str(path))
    assert session.get_inputs()[0].shape == [1, 3, 48, 64]
    (ours,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(ours, model(x).detach().numpy(), rtol=1e-3, atol=1e-4)


def test_bf16_autocast() -> None:
    model, x = seeded_tiny(), torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        full = model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = model(x)
    assert half.dtype == torch.bfloat16
    assert torch.isfinite(half).all()
    assert (half.float() - full).abs().max() <= 2e-2


def test_bf16_training_step_reaches_every_parameter() -> None:
    model, x = tiny_net().train(), torch.randn(2, 3, 64, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).float().square().sum()
    loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
