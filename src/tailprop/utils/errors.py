"""What an exception means to a user: missing memory, a loader process that died."""

import re

__all__ = ["dead_loader", "missing_memory"]


def dead_loader(error: BaseException) -> str | None:
    """How a loader process ended, in PyTorch's words, if that is what an error is about."""
    found = re.search(r"DataLoader worker \(pid.*?\) (is killed by signal: [\w ]+|exited unexpectedly)", str(error))
    return found[1].rstrip(". ") if found else None


def missing_memory(error: BaseException) -> str | None:
    """What is said of memory that could not be had, by PyTorch ("Tried to allocate 2.00 GiB"), CUDA or Python; else nothing."""
    if found := re.search(r"tried to allocate (\S+ \w+)", str(error), re.IGNORECASE):
        return f"{found[1]} more were asked for"
    if isinstance(error, MemoryError) or re.search("out of memory|ALLOC_FAILED", str(error)):
        return str(error).splitlines()[0] if str(error) else "of the machine"
    return None
