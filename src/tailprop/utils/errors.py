"""Exceptions a user can act on: out of memory, a loader process that died."""

import re

__all__ = ["dead_loader", "first_line", "missing_memory"]


def first_line(error: BaseException) -> str:
    """The first line of an error message, or the kind of the error if it has none."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def dead_loader(error: BaseException) -> str | None:
    """How a loader process ended, in PyTorch's words; None if the error is about something else."""
    found = re.search(r"DataLoader worker \(pid.*?\) (is killed by signal: [\w ]+|exited unexpectedly)", str(error))
    return found[1].rstrip(". ") if found else None


def missing_memory(error: BaseException) -> str | None:
    """A description of an out-of-memory error of PyTorch ("Tried to allocate 2.00 GiB"), CUDA or Python; None for others."""
    if found := re.search(r"tried to allocate (\S+ \w+)", str(error), re.IGNORECASE):
        return f"tried to allocate {found[1]}"
    if isinstance(error, MemoryError) or re.search("out of memory|ALLOC_FAILED", str(error)):
        return str(error).splitlines()[0] if str(error) else "host memory"
    return None
