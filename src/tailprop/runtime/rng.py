"""Random number generators: seeding, saving and restoring every generator a process draws from."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

__all__ = ["get_rng_state", "mix_seeds", "preserve_rng_state", "seed_process", "seeded", "set_rng_state"]

_64_BITS = (1 << 64) - 1


def mix_seeds(*numbers: int) -> int:
    """One seed from several numbers by SplitMix64, in a tenth of the time of numpy's SeedSequence."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _64_BITS
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _64_BITS
        state ^= state >> 31
    return state >> 32  # numpy seeds have 32 bits


def seed_process(*numbers: int) -> None:
    """Seed every generator, including those of GPUs, from several numbers."""
    torch.manual_seed(mix_seeds(*numbers))
    _seed_others(mix_seeds(*numbers, 1))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed every generator a transform may draw from, and restore their states afterwards."""
    with preserve_rng_state():
        _seed_others(seed)
        torch.default_generator.manual_seed(seed)
        yield


def _seed_others(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - timm's transforms and its mixup draw from it


@contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Restore the state of every generator afterwards.

    That takes half as long as cropping a small image. So it does nothing when nested, and nothing in a loader process, where
    the generators serve no other purpose.
    """
    global _is_preserving
    if _is_preserving or get_worker_info() is not None:
        yield
        return
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    _is_preserving = True
    try:
        yield
    finally:
        _is_preserving = False
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


_is_preserving = False


def get_rng_state(device: torch.device) -> dict[str, Any]:
    """The state of every generator this process draws from, as plain values and tensors."""
    kind, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    version, internal, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(cached)],
        "python": [version, torch.tensor(internal), gauss],
    }


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(_as_bytes(state["torch"]))
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(_as_bytes(state["cuda"]), device)
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal.tolist()), gauss))


def _as_bytes(state: Tensor) -> Tensor:
    return state.cpu().to(torch.uint8)
