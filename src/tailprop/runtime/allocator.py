"""Memory that is freed is kept for what comes next, where a process of ours computes on a CPU.

The C library of Linux hands large blocks back to the system as soon as they are free, and gets them again, page by page and
filled with zeros, for the next activation of the same size. A training step does that a few hundred times, each time with the
sizes of the step before it, so keeping them costs little memory and saves the fetching.
"""

import ctypes
import os
import platform
from typing import Final

__all__ = ["keep_freed_memory", "keep_some_freed_memory"]

SWITCH: Final = "TAILPROP_KEEP_MEMORY"  # 0 in the environment: hand everything back as usual
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4  # of mallopt, as in malloc.h
_GROWTH: Final = 64 << 20  # bytes to ask for at once
_SOME: Final = 32 << 20  # bytes; glibc allows no higher threshold


def keep_freed_memory() -> bool:
    """Ask the allocator to keep what is freed; whether it will. For a process of our own: a library must not decide this."""
    return _set((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, _GROWTH))


def keep_some_freed_memory() -> bool:
    """The same within bounds, for loader processes: there are many of them, and they inherit what their parent has set."""
    done = _set((_MMAP_MAX, 65536), (_MMAP_THRESHOLD, _SOME), (_TRIM_THRESHOLD, 2 * _SOME), (_TOP_PAD, 1 << 17))
    if done:  # what the parent kept free is shared with it until it is used again, and would then be there twice
        ctypes.CDLL(None).malloc_trim(0)
    return done


def _set(*settings: tuple[int, int]) -> bool:
    if os.environ.get(SWITCH) == "0" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(name, value) == 1 for name, value in settings)
