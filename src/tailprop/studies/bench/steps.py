"""Models by name, and what is timed: a forward pass, or a training step."""

import importlib.util
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailprop.runtime.optimize import OptimizedModel, optimize
from tailprop.runtime.precision import autocast
from tailprop.studies.bench.settings import Setting

__all__ = ["PUBLISHED_VHEAT", "create_model", "create_step", "random_images"]

PUBLISHED_VHEAT = "vHeat-T (published code)"
Step = Callable[[], object]


def create_model(name: str, size_px: int, vheat_code: Path | None = None) -> nn.Module:
    """A timm model, or vHeat's published code by its name in the table."""
    if name == PUBLISHED_VHEAT:
        assert vheat_code is not None
        return _published_vheat(vheat_code)
    # some models need the image size as an argument
    size = {"img_size": size_px} if timm.get_pretrained_cfg_value(name, "fixed_input_size") else {}
    return timm.create_model(name, **size)


def _published_vheat(path: Path) -> nn.Module:
    spec = importlib.util.spec_from_file_location("published_vheat", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports from deprecated timm modules
        spec.loader.exec_module(module)
    # Tiny, as in its configs/vHeat/vHeat_tiny_224.yaml
    return module.vHeat(depths=[2, 2, 6, 2], dims=96, drop_path_rate=0.1, post_norm=False)


def random_images(setting: Setting, device: str) -> Tensor:
    return torch.randn(setting.batch_size, 3, setting.size_px, setting.size_px, device=device)


def create_step(model: nn.Module, images: Tensor, setting: Setting) -> tuple[Step, str]:
    """What is timed, and the form that was chosen for an optimized model."""
    if setting.form == "optimized":
        fast: OptimizedModel = optimize(model, images, precision="fp32" if setting.dtype == "fp32" else "auto", rounds=3)
        return _infer(fast, images, "fp32"), fast.report.chosen
    model.train(setting.mode == "train")
    called: Any = torch.compile(model) if setting.form == "compiled" else model
    step = _train(model, called, images, setting.dtype) if setting.mode == "train" else _infer(called, images, setting.dtype)
    return step, setting.form


def _infer(model: Callable[[Tensor], Any], images: Tensor, dtype: str) -> Step:
    def infer() -> None:
        with torch.inference_mode(), autocast(images.device, dtype):
            model(images)

    return infer


def _train(model: nn.Module, called: Callable[[Tensor], Tensor], images: Tensor, dtype: str) -> Step:
    labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(images.device, dtype):
            loss = F.cross_entropy(called(images), labels)
        loss.backward()
        optimizer.step()

    return train
