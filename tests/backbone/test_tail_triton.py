"""The Triton kernel: its switch, its cases in Triton's interpreter, and that it compiles for a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tailprop import tail_propagate
from tailprop.backbone import tail_triton
from tailprop.backbone.tail_triton import SWITCH, Tile, chosen_kernel, tail_kernel, usable
from tests.helpers import ROOT


def test_cases_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/backbone/triton_cases.py"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_kernel_compiles_for_a_gpu(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter accepts what the compiler does not. No GPU is needed."""
    pytest.importorskip("triton")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels = tail_triton._kernels()
    assert kernels is not None
    kernel = getattr(kernels, f"{name}_kernel")
    slots = {"SLOTS": 2} if name == "backward" else {}
    constants = {"normalized_ptr": None, "K": 2, "ORDERS": (2.0, 1.0), "H": 16, "W": 16, "C": 2} | slots
    maps = {"x_ptr", "y_ptr", "dy_ptr", "dx_ptr", "d_h_ptr", "d_w_ptr"}
    kinds = {n: "*bf16" if n in maps else "*fp32" if n.endswith("_ptr") else "i32" for n in kernel.arg_names}
    signature = kinds | {"spacing": "fp32"} | dict.fromkeys(constants, "constexpr")
    source, options = ASTSource(kernel, signature, constants), {"num_warps": 8, "enable_fp_fusion": True}
    built = triton.compile(source, GPUTarget("cuda", 80, 32), options)
    assert "mma.sync" in built.asm["ptx"]  # tensor cores


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles_fit_the_registers(dtype: torch.dtype) -> None:
    for h in (1, 7, 16, 17, 33, 64):
        for w in (1, 16, 56, 64):
            tile = Tile.of(h, w, 96, dtype)
            assert h <= tile.height <= 64
            assert w <= tile.width <= 64
            assert 1 <= tile.channels <= 16
            assert tile.height * tile.width * tile.channels <= tail_triton.TILE_VALUES[dtype]
    assert Tile.of(64, 64, 96, torch.bfloat16).channels == 4
    assert Tile.of(7, 7, 3, dtype) == (16, 16, 4)


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 4, 4, 2)
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert chosen_kernel() == "products"
    monkeypatch.setenv(SWITCH, "triton")
    assert chosen_kernel() == "triton"
    assert not usable(x)  # on a CPU
    with tail_kernel("products"):
        assert chosen_kernel() == "products"
    monkeypatch.setenv(SWITCH, "cuda")
    with pytest.raises(ValueError, match="unknown TAILPROP_KERNEL 'cuda'; choose one of 'products', 'triton'"):
        tail_propagate(x, (2.0, 1.0))
    with pytest.raises(ValueError, match="unknown kernel 'cuda'"), tail_kernel("cuda"):
        pass
