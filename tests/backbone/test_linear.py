"""Linear layers by oneDNN: values, gradients, and where they are PyTorch's."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tailprop.backbone import linear
from tailprop.backbone.linear import CAPACITY, SWITCH, Linear, onednn_is_faster

needs_onednn = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this build has no such operator")


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Use oneDNN on any processor, and record its products."""
    found: list[Any] = []
    product = linear._product

    def record(*args: Any) -> torch.Tensor:
        found.append(args)
        return product(*args)

    monkeypatch.setattr(linear, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(linear, "_product", record)
    return found


def pair(bias: bool = True, dtype: torch.dtype = torch.float32) -> tuple[Linear, nn.Linear]:
    torch.manual_seed(0)
    ours, theirs = Linear(24, 40, bias=bias, dtype=dtype), nn.Linear(24, 40, bias=bias, dtype=dtype)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 4, 24), (2, 24, 3)])
def test_values_and_gradients_are_those_of_pytorch(bias: bool, shape: tuple[int, ...], products: list[Any]) -> None:
    ours, theirs = pair(bias)
    x = torch.randn(shape)
    x = x if shape[-1] == 24 else x.mT  # not contiguous
    x1, x2 = x.clone().requires_grad_(), x.clone().requires_grad_()
    y1, y2 = ours(x1), theirs(x2)
    assert len(products) == 1
    torch.testing.assert_close(y1, y2)
    grad = torch.randn_like(y2)
    y1.backward(grad)
    y2.backward(grad)
    assert len(products) == 3
    torch.testing.assert_close(x1.grad, x2.grad)
    for p1, p2 in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p1.grad, p2.grad)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
    assert len(products) == 4


@needs_onednn
@pytest.mark.usefixtures("products")
def test_gradients_of_gradients() -> None:
    results = []
    for layer in pair():
        x = torch.linspace(-1, 1, 48).view(2, 24).requires_grad_()
        (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        first.square().sum().backward()
        results.append((x.grad, layer.weight.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@needs_onednn
@pytest.mark.usefixtures("products")
def test_frozen_weights_and_inputs_get_no_gradient() -> None:
    ours, _ = pair()
    ours.weight.requires_grad_(False)
    x = torch.randn(2, 24, requires_grad=True)
    ours(x).sum().backward()
    assert ours.weight.grad is None
    assert x.grad is not None
    assert ours.bias.grad is not None


def test_elsewhere_the_layer_is_pytorchs(products: list[Any]) -> None:
    ours, theirs = pair()
    x = torch.randn(2, 24)
    with FlopCounterMode(display=False) as counter:
        ours(x)
    assert counter.get_total_flops() == 2 * 2 * 24 * 40
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x).dtype == torch.bfloat16
    torch.testing.assert_close(torch.vmap(ours)(x), theirs(x))
    assert torch.fx.symbolic_trace(nn.Sequential(ours))(x).shape == (2, 40)
    assert ours(x[:0]).shape == (0, 40)
    assert pair(dtype=torch.float64)[0](x.double()).dtype == torch.float64
    assert ours.to("meta")(x.to("meta")).shape == (2, 40)
    assert not products


def test_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in (("0", False), ("1", hasattr(torch.ops.mkldnn, "_linear_pointwise"))):
        monkeypatch.setenv(SWITCH, value)
        monkeypatch.delenv(CAPACITY, raising=False)
        onednn_is_faster.cache_clear()
        assert onednn_is_faster() == expected
        assert os.environ.get(CAPACITY) == ("128" if expected else None)
    onednn_is_faster.cache_clear()


GROWTH = """
from pathlib import Path
import torch
from tailprop.backbone.linear import Linear
def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
layer = Linear(24, 24)
torch.set_num_threads(1)
with torch.inference_mode():
    for rows in range(50, 200):
        layer(torch.rand(rows, 24))
    before = resident()
    for rows in range(200, 800):
        layer(torch.rand(rows, 24))
print(resident() - before)
"""


@needs_onednn
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_does_not_rise_with_the_sizes_of_images() -> None:
    """Half a megabyte for each number of rows was kept: 250 MB here."""
    environment = {key: value for key, value in os.environ.items() if key not in (CAPACITY, "ONEDNN_PRIMITIVE_CACHE_CAPACITY")}
    environment |= {SWITCH: "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}
    done = subprocess.run([sys.executable, "-c", GROWTH], env=environment, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100
