"""One process or many: the environment torchrun sets, rank zero, and sums over processes."""

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tailprop.runtime.allocator import keep_freed_memory
from tailprop.runtime.signals import Interrupted
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
    """A process among all of them."""

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
        raise ValueError("an Apple GPU trains with one process; start without torchrun, or choose the device cpu")
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
    """Where the processes find each other, if not where PyTorch looks by itself.

    torchrun keeps one store for all its restarts, and the addresses of the crashed processes are still in it: each attempt
    needs names of its own.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, size, is_master=False, timeout=_TIMEOUT)  # type: ignore[attr-defined]
    own = dist.PrefixStore(agree_on_attempt(store, rank, size), store)  # type: ignore[attr-defined]
    return {"store": own, "rank": rank, "world_size": size}


def agree_on_attempt(store: Any, rank: int, size: int) -> str:
    """A name for this attempt, the same in all its processes and in no earlier attempt.

    Restarts cannot be counted: each node counts its own. So the main process calls out a new name, the others answer it with
    a mark of their own, and it begins when all have answered. What the dead left in the store names none of our marks.
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
    agent = os.getppid()  # torchrun's default names nothing; containers count processes from 1, so its start is told too
    return " ".join([f"agent {agent} of {os.uname().nodename}", *_start_of(agent)])


def _start_of(process: int) -> list[str]:
    """When a process was started, in the words of Linux; elsewhere nothing."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    return [f"since tick {stat.rpartition(')')[2].split()[19]}"]  # field 22; the second, a name, may hold spaces


@contextmanager
def process_group(device: str = "auto", threads: int = 0) -> Iterator[World]:
    """Meet the other processes, and leave them when all is done; that one of them is gone is said in a line.

    Not after an error: with the others in the middle of something, leaving may wait for them.
    """
    world = init_distributed(device, threads)
    try:
        yield world
        _destroy()
    except Interrupted:  # all have stopped, at the same step
        _destroy()
        raise
    except RuntimeError as error:
        if not _is_lost_process(error):
            raise
        raise ValueError("another process of this run ended; its own message says why") from None


def _is_lost_process(error: RuntimeError) -> bool:
    """Whether an error means that another process is gone: gloo and NCCL say so in their own words."""
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
            raise ValueError("no CUDA device is visible; choose the device cpu")
        if local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"process {local_rank + 1} on this node has no GPU: {torch.cuda.device_count()} are visible; lower torchrun's "
                "--nproc-per-node"
            )
        return torch.device("cuda", local_rank)
    if device == "mps" and not torch.backends.mps.is_available():
        raise ValueError("no Apple GPU is visible; choose the device cpu")
    return torch.device(device)


def _use_loopback_if_local() -> None:
    """gloo asks the resolver for this host's name, which fails on machines without one; a single node needs none."""
    local = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    if local and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def print_main(text: str) -> None:
    """A note on standard error, of all processes by one."""
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):  # the pipe is closed
            print(text, file=sys.stderr)


def all_reduce_sum(values: Tensor, device: torch.device) -> Tensor:
    """The sum of a CPU tensor over all processes; `device` is where they talk."""
    if not _is_initialized():
        return values
    total = values.to(device)
    dist.all_reduce(total)
    return total.cpu()


def local_main_first(act: Callable[[], T], wait: bool = True) -> T:
    """Let one process of each machine act before the others do, if they have to wait for it: what it fetched they find."""
    if not (wait and _is_initialized()):
        return act()
    is_one = os.environ.get("LOCAL_RANK", "0") == "0"
    problem, found = None, []
    if is_one:
        try:
            found = [act()]
        except (ValueError, OSError) as error:
            problem = error
    if any(all_gather(problem is not None)):
        raise problem or ValueError("another process could not open the data; its own message says why")
    return found[0] if is_one else act()


def sync_batch_norm_stats(model: nn.Module) -> None:
    """Give every process the first one's running statistics.

    GPUs share them in training. On a CPU each process has its own after a step, and would evaluate a slightly other model.
    """
    if not _is_initialized():
        return
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for value in module.buffers():
                dist.broadcast(value, 0)


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether any process says so."""
    return bool(all_reduce_sum(torch.tensor(float(flag)), device).item())


def all_gather(value: Any) -> list[Any]:
    """The values of all processes, by rank, in every process."""
    if not _is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
