"""Distributed runs: torchrun's environment, rank 0, and reductions over processes."""

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tailprop.runtime.allocator import keep_freed_memory
from tailprop.runtime.signals import Interrupted
from tailprop.utils.text import print_main
from tailprop.utils.validation import check_at_least

__all__ = [
    "World",
    "agree_on_attempt",
    "all_gather",
    "all_reduce_sum",
    "any_rank",
    "init_distributed",
    "launch_id",
    "local_main_first",
    "print_main",
    "process_group",
    "sync_batch_norm_stats",
]


T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The rank of this process, the number of processes, and the device."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def init_distributed(device: str = "auto", threads: int = 0) -> World:
    """Read torchrun's environment and initialize the process group; a single process needs none."""
    check_at_least("threads", threads, 0)
    if threads:
        torch.set_num_threads(threads)
    rank, size, local = (int(os.environ.get(name, default)) for name, default in _VARIABLES)
    chosen = _select_device(device, local)
    if chosen.type == "cpu":
        keep_freed_memory()
    if size > 1 and chosen.type == "mps":
        raise ValueError("training on an Apple GPU supports one process only; start without torchrun, or use the device cpu")
    if size > 1 and not dist.is_initialized():
        _use_loopback_if_local()
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT, **_rendezvous(rank, size))
    return World(rank, size, chosen)


_TIMEOUT = timedelta(minutes=30)
_VARIABLES = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


def _rendezvous(rank: int, size: int) -> dict[str, Any]:
    """Arguments of `init_process_group` under torchrun; empty where PyTorch's defaults work.

    torchrun keeps one store for all its restarts, and the addresses of the crashed processes are still in it, so each attempt
    needs its own key prefix.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, size, is_master=False, timeout=_TIMEOUT)  # type: ignore[attr-defined]
    own = dist.PrefixStore(agree_on_attempt(store, rank, size), store)  # type: ignore[attr-defined]
    return {"store": own, "rank": rank, "world_size": size}


def agree_on_attempt(store: Any, rank: int, size: int) -> str:
    """A name for this attempt that all its processes share and no earlier attempt had.

    Restarts cannot be counted, because each node counts its own. So rank 0 publishes a new name, every other rank replies with
    a random mark, and the attempt begins when all have replied. Keys left by crashed processes contain none of these marks.
    """
    mark = uuid.uuid4().hex
    if rank == 0:
        store.set("tailprop/name", mark)
        marks = [store.get(f"tailprop/{mark}/{other}").decode() for other in range(1, size)]  # waits for each
        store.set(f"tailprop/{mark}/begin", ",".join(marks))
        return mark
    deadline = time.monotonic() + _TIMEOUT.total_seconds()
    while time.monotonic() < deadline:
        name = store.get("tailprop/name").decode()
        store.set(f"tailprop/{name}/{rank}", mark)
        begin = f"tailprop/{name}/begin"
        if store.check([begin]) and mark in store.get(begin).decode():
            return name
        time.sleep(0.02)
    raise ValueError("timed out waiting for rank 0; see its messages")


def launch_id() -> str:
    """A name for this launch of torchrun, the same after its restarts; empty without torchrun."""
    if (name := os.environ.get("TORCHELASTIC_RUN_ID")) is None:
        return ""
    if name != "none":
        return name
    agent = os.getppid()  # torchrun's default id is not unique; containers reuse process ids, so the start time is added
    return " ".join([f"agent {agent} of {os.uname().nodename}", *_start_time(agent)])


def _start_time(process: int) -> list[str]:
    """When a process was started, in Linux clock ticks; empty on other systems."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    return [f"since tick {stat.rpartition(')')[2].split()[19]}"]  # field 22; field 2, the name, may contain spaces


@contextmanager
def process_group(device: str = "auto", threads: int = 0) -> Iterator[World]:
    """Initialize the process group and destroy it at the end; a lost process becomes a one-line error.

    After an error it is not destroyed: the other processes may be inside a collective, and destroying could wait for them.
    """
    world = init_distributed(device, threads)
    try:
        yield world
        _destroy()
    except Interrupted:  # all processes stopped at the same step
        _destroy()
        raise
    except RuntimeError as error:
        if not _is_lost_process(error):
            raise
        raise ValueError("another process of this run ended; see its error message") from None


def _is_lost_process(error: RuntimeError) -> bool:
    """Whether an error of gloo or NCCL means that another process is gone."""
    words = ("connection closed by peer", "connection reset by peer", "nccl", "timed out waiting")
    return _is_initialized() and any(word in str(error).lower() for word in words)


def _destroy() -> None:
    if _is_initialized():
        dist.destroy_process_group()


def _is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _select_device(device: str, local_rank: int) -> torch.device:
    if device == "auto":
        gpu = "mps" if torch.backends.mps.is_available() else "cpu"
        device = "cuda" if torch.cuda.is_available() else gpu
    if device == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("no CUDA device is visible; use the device cpu")
        if local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"local rank {local_rank} has no GPU: {torch.cuda.device_count()} are visible on this node; lower torchrun's "
                "--nproc-per-node"
            )
        return torch.device("cuda", local_rank)
    if device == "mps" and not torch.backends.mps.is_available():
        raise ValueError("no Apple GPU is visible; use the device cpu")
    return torch.device(device)


def _use_loopback_if_local() -> None:
    """Use the loopback interface on a single node: gloo resolves the host name, which fails where there is no DNS entry."""
    local = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    if local and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def all_reduce_sum(values: Tensor, device: torch.device) -> Tensor:
    """The sum of a CPU tensor over all processes; `device` is the one the process group communicates on."""
    if not _is_initialized():
        return values
    total = values.to(device)
    dist.all_reduce(total)
    return total.cpu()


def local_main_first(act: Callable[[], T], wait: bool = True) -> T:
    """Call `act` on local rank 0 of each node first, then on the others, which find what it downloaded or wrote.

    Without `wait` all call it at once.
    """
    if not (wait and _is_initialized()):
        return act()
    is_local_main = os.environ.get("LOCAL_RANK", "0") == "0"
    problem, found = None, []
    if is_local_main:
        try:
            found = [act()]
        except (ValueError, OSError) as error:
            problem = error
    if any(all_gather(problem is not None)):
        raise problem or ValueError("another process could not open the dataset; see its error message")
    return found[0] if is_local_main else act()


def sync_batch_norm_stats(model: nn.Module) -> None:
    """Broadcast rank 0's running statistics of batch norms to every process.

    On GPUs SyncBatchNorm keeps them equal. On CPUs each process has its own and would evaluate a slightly different model.
    """
    if not _is_initialized():
        return
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for value in module.buffers():
                dist.broadcast(value, 0)


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on any process."""
    return bool(all_reduce_sum(torch.tensor(float(flag)), device).item())


def all_gather(value: Any) -> list[Any]:
    """The values of all processes, by rank, in every process."""
    if not _is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
