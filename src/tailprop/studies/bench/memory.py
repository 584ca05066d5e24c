"""Peak memory of a training step: model, gradients, optimizer and activations."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from tailprop.runtime.memory import peak_bytes
from tailprop.studies.bench.settings import Setting
from tailprop.studies.bench.steps import create_model, create_step, random_images
from tailprop.tasks.common.bench import use_cpu

__all__ = ["step_gb"]


def step_gb(name: str, setting: Setting, device: str, vheat_code: Path | None = None) -> float:
    """GB of a new process above what it had before the model was created; on CUDA, the memory allocated on the GPU."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_measure, name, setting, device, vheat_code).result()
        except BrokenProcessPool:
            raise ValueError("its process died, perhaps out of memory") from None


def _measure(name: str, setting: Setting, device: str, vheat_code: Path | None) -> float:
    use_cpu(setting.threads)
    before = peak_bytes()
    model = create_model(name, setting.size_px, vheat_code).to(device)
    step, _ = create_step(model, random_images(setting, device), setting)
    for _ in range(2):  # the optimizer has its state from the second step on
        step()
    used = torch.cuda.max_memory_allocated() if device == "cuda" else peak_bytes() - before
    return used / 1e9
