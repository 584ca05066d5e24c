"""The Triton kernel against the float64 reference and the products, in Triton's interpreter.

The interpreter must be chosen before triton is imported, so `test_tail_triton.py` runs this file in a process of its own.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tailprop import TailPropagation, tail_propagate, tail_propagate_reference
from tailprop.backbone import tail_triton
from tailprop.backbone.tail_triton import tail_kernel, usable
from tests.backbone.test_operator import SETTINGS, perturbed, reference

KERNELS_AT_IMPORT = "tailprop.backbone.tail_kernels" in sys.modules
NAMES = ("tailprop", "gaussian", "learnable", "adaptive_alpha", "three orders", "learned orders", "gain on the map")
SHAPES = ((2, 7, 12, 5), (1, 1, 9, 18), (1, 33, 16, 3), (1, 16, 5, 2))
GAINED, NORMALIZED = "multiscale", "gain and normalized"
CASES = [(name, SHAPES[0]) for name in NAMES] + [(name, s) for name in ("tailprop", GAINED, NORMALIZED) for s in SHAPES]
CASES = list(dict.fromkeys(CASES))
SCALES = (2.0, 1.0)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were run."""
    seen: list[str] = []
    launch = tail_triton._launch

    def count(name: str, *args: Any, **constants: int) -> None:
        seen.append(name)
        launch(name, *args, **constants)

    monkeypatch.setattr(tail_triton, "_launch", count)
    return seen


def gradients(y: Tensor, inputs: Sequence[Tensor], create_graph: bool = False) -> tuple[Tensor, ...]:
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return torch.autograd.grad(y, inputs, upstream / math.sqrt(y.shape[1] * y.shape[2]), create_graph=create_graph)


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    ours, theirs = ours.detach().double(), theirs.detach().double()
    return float((ours - theirs).abs().max() / theirs.abs().max())


def test_kernels_are_imported_when_needed() -> None:
    assert not KERNELS_AT_IMPORT


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_kernel_matches_the_reference(name: str, shape: tuple[int, ...], launches: list[str]) -> None:
    module = perturbed(shape[-1], **SETTINGS[name])
    x = (2 * torch.rand(shape) - 1).requires_grad_()
    with tail_kernel("triton"):
        fast = module(x)
    slow = reference(module, x)
    assert relative_error(fast, slow) <= (1e-6 if module.log_gain is None else 3e-6)  # the gain is applied after the kernel

    inputs = [x, *module.parameters()]
    for ours, theirs in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-6)
    assert launches == ["forward_kernel", "backward_kernel"]


@pytest.mark.parametrize("name", ["tailprop", GAINED, NORMALIZED])
def test_bfloat16(name: str) -> None:
    """Within 4 % of the largest value: a GPU rounds to the nearest bfloat16, but the interpreter towards zero."""
    module = perturbed(4, **SETTINGS[name])
    x = (2 * torch.rand(2, 7, 12, 4) - 1).bfloat16()
    given = [x, module.scales().detach(), torch.tensor([0.3, 0.7]).expand(2, 4, 2).mT]
    results = []
    for function, kinds in ((tail_propagate, (x.dtype, torch.float32)), (tail_propagate_reference, (torch.float64,) * 2)):
        inputs = [t.to(kinds[0] if t is x else kinds[1]).clone().requires_grad_() for t in given]
        with tail_kernel("triton"):
            y = function(*inputs, normalized=module.normalized, gain=module.gain())
        results.append((y, *gradients(y, inputs)))
    assert results[0][0].dtype == torch.bfloat16
    for ours, theirs in zip(*results, strict=True):
        assert relative_error(ours, theirs) <= 0.04


def test_autocast_decides_on_the_dtype() -> None:
    x = torch.randn(1, 7, 12, 4)
    with torch.autocast("cpu", torch.bfloat16):
        expected = tail_propagate(x, SCALES)
        with tail_kernel("triton"):
            y = tail_propagate(x, SCALES)
    assert y.dtype == expected.dtype == torch.bfloat16
    assert relative_error(y, expected) <= 0.04
    with torch.autocast("cpu", torch.float16), tail_kernel("triton"):
        assert not usable(x)


def test_strided_maps_and_gradients() -> None:
    wide = torch.randn(2, 9, 7, 8)
    results = []
    for kernel in ("triton", "products"):
        x = wide[..., 4:].transpose(1, 2).requires_grad_()
        with tail_kernel(kernel):
            y = tail_propagate(x, SCALES)
        results.append((y, *torch.autograd.grad(y.square().sum() + y.sum(), x)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_second_derivatives_are_those_of_the_products() -> None:
    module = perturbed(3, **SETTINGS[NORMALIZED])
    inputs = [torch.randn(1, 5, 4, 3).requires_grad_(), *module.parameters()]
    results = []
    for kernel in ("triton", "products"):
        with tail_kernel(kernel):
            first = gradients(module(inputs[0]), inputs, create_graph=True)
        results.append(first + torch.autograd.grad(sum(g.square().sum() for g in first), inputs))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_what_the_kernel_does_not_take() -> None:
    x = torch.randn(1, 5, 4, 3)
    assert not usable(x)
    with tail_kernel("triton"):
        assert usable(x)
        assert usable(torch.zeros(1, 64, 64, 1))
        others = [x.double(), x.half(), x[:0], x[0], x.to("meta"), torch.zeros(1, 65, 1, 1), torch.zeros(1, 1, 65, 1)]
        assert not any(usable(other) for other in others)
        assert not usable(x, normalized=torch.ones(3, requires_grad=True))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # which torch uses for forward gradients
def test_captured_and_transformed_maps_go_to_the_products(launches: list[str]) -> None:
    x = torch.randn(1, 5, 4, 3)
    expected = tail_propagate(x, SCALES)
    with tail_kernel("triton"):
        compiled = torch.compile(lambda x: tail_propagate(x, SCALES), backend="eager", fullgraph=True)(x)
        mapped = torch.func.vmap(lambda x: tail_propagate(x[None], SCALES)[0])(x)
        _, tangent = torch.func.jvp(lambda x: tail_propagate(x, SCALES), (x,), (x,))
        with torch.autograd.forward_ad.dual_level():
            dual = tail_propagate(torch.autograd.forward_ad.make_dual(x, x), SCALES)
            directional = torch.autograd.forward_ad.unpack_dual(dual).tangent
    for y in (compiled, mapped, tangent, directional):  # the operator is linear
        torch.testing.assert_close(y, expected)
    assert not launches


def test_gate_by_place_stays_with_the_products(launches: list[str]) -> None:
    module, x = TailPropagation(3, gate="spatial"), torch.randn(1, 5, 4, 3)
    with tail_kernel("triton"):
        assert torch.equal(module(x), module(x))
    assert not launches


@pytest.mark.parametrize("broken", ["forward_kernel", "backward_kernel"])
def test_kernel_that_cannot_be_built(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = perturbed(3), torch.randn(1, 5, 4, 3, requires_grad=True)
    inputs, launch = [x, *module.parameters()], tail_triton._launch

    def fail(name: str, *args: Any, **constants: int) -> None:
        if name == broken:
            raise RuntimeError("out of resource: shared memory\nmore")
        launch(name, *args, **constants)

    def run() -> tuple[Tensor, ...]:
        y = module(x)
        return y, *gradients(y, inputs)

    expected = run()
    monkeypatch.setattr(tail_triton, "_launch", fail)
    monkeypatch.setattr(tail_triton, "_failures", [])
    with tail_kernel("triton"), pytest.warns(UserWarning, match="replaced by matrix products: out of resource: shared memory$"):
        found = run()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    with tail_kernel("triton"):
        assert not usable(x)


@pytest.mark.parametrize("shape", [(3, 2, 4), (2, 2, 5), (2, 2, 3)])
def test_wrong_shapes_are_errors(shape: tuple[int, ...]) -> None:
    x = torch.randn(2, 5, 4, 4)
    with tail_kernel("triton"):
        with pytest.raises(RuntimeError, match="must match"):
            tail_propagate(x, SCALES, torch.full(shape, 0.5))
        with pytest.raises(RuntimeError, match="must match"):
            tail_propagate(x, SCALES, normalized=torch.ones(shape[-1] + 2))
        assert usable(x)


def test_out_of_memory_is_no_reason_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any, **_constants: int) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(tail_triton, "_launch", fail)
    with tail_kernel("triton"), pytest.raises(torch.OutOfMemoryError):
        tail_propagate(torch.randn(1, 5, 4, 3), SCALES)
    assert not tail_triton._failures


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 5, 4, 3)
    monkeypatch.delattr(sys.modules["tailprop.backbone"], "tail_kernels", raising=False)
    monkeypatch.setitem(sys.modules, "tailprop.backbone.tail_kernels", None)
    tail_triton._kernels.cache_clear()
    with tail_kernel("triton"):
        assert not usable(x)
        torch.testing.assert_close(tail_propagate(x, SCALES), tail_propagate_reference(x, SCALES))
    tail_triton._kernels.cache_clear()
