"""One process or many: the environment torchrun sets, rank zero, and sums over processes."""

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["World", "any_true", "gather", "join", "leave", "sum_over_processes"]


@dataclass(frozen=True)
class World:
    """A process among all of them."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def join(device: str = "auto", threads: int = 0) -> World:
    """Read torchrun's environment and meet the other processes; alone, there is nobody to meet."""
    if threads:
        torch.set_num_threads(threads)
    rank, size, local = (int(os.environ.get(name, default)) for name, default in _VARIABLES)
    chosen = _choose(device, local)
    if size > 1 and not dist.is_initialized():
        _use_loopback_if_local()
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_PATIENCE, **_meeting_point(rank, size))
    return World(rank, size, chosen)


_PATIENCE = timedelta(minutes=30)
_VARIABLES = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


def _meeting_point(rank: int, size: int) -> dict[str, Any]:
    """Where the processes find each other, if not where PyTorch looks by itself.

    torchrun keeps one store for all its restarts, and the addresses of the crashed processes are still in it: each attempt
    needs names of its own.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, size, is_master=False, timeout=_PATIENCE)  # type: ignore[attr-defined]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = dist.PrefixStore(f"attempt_{attempt}", store)  # type: ignore[attr-defined]
    return {"store": own, "rank": rank, "world_size": size}


def leave() -> None:
    if _is_shared():
        dist.destroy_process_group()


def _is_shared() -> bool:
    return dist.is_available() and dist.is_initialized()


def _choose(device: str, local_rank: int) -> torch.device:
    if device == "auto":
        gpu = "mps" if torch.backends.mps.is_available() else "cpu"
        device = "cuda" if torch.cuda.is_available() else gpu
    if device == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("no CUDA device is visible; choose the device cpu")
        return torch.device("cuda", local_rank)
    if device == "mps" and not torch.backends.mps.is_available():
        raise ValueError("no Apple GPU is visible; choose the device cpu")
    return torch.device(device)


def _use_loopback_if_local() -> None:
    """gloo asks the resolver for this host's name, which fails on machines without one; a single node needs none."""
    local = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    if local and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def sum_over_processes(values: Tensor, device: torch.device) -> Tensor:
    """The sum of a CPU tensor over all processes; `device` is where they talk."""
    if not _is_shared():
        return values
    total = values.to(device)
    dist.all_reduce(total)
    return total.cpu()


def any_true(flag: bool, device: torch.device) -> bool:
    """Whether any process says so."""
    return bool(sum_over_processes(torch.tensor(float(flag)), device).item())


def gather(value: Any) -> list[Any]:
    """The values of all processes, by rank, in every process."""
    if not _is_shared():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
