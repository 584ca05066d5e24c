"""Let malloc keep freed memory in processes that compute on a CPU.

glibc returns large blocks to the system as soon as they are freed, and then requests them again, page by page and filled with
zeros, for the next activation of the same size. A training step does that a few hundred times, with the same sizes in every
step, so keeping the blocks costs little memory and saves the page faults.
"""

import ctypes
import os
import platform
from typing import Final

__all__ = ["keep_freed_memory", "keep_some_freed_memory"]

SWITCH: Final = "TAILPROP_KEEP_MEMORY"  # 0 in the environment: return freed memory as usual
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4  # of mallopt, as in malloc.h
_GROWTH: Final = 64 << 20  # bytes requested at once
_SOME: Final = 32 << 20  # bytes; glibc allows no higher threshold


def keep_freed_memory() -> bool:
    """Make malloc keep freed memory; returns whether it does. Only for our own commands: a library must not decide this."""
    return _set((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, _GROWTH))


def keep_some_freed_memory() -> bool:
    """Keep a limited amount, for loader processes: there are many of them, and they inherit their parent's settings."""
    done = _set((_MMAP_MAX, 65536), (_MMAP_THRESHOLD, _SOME), (_TRIM_THRESHOLD, 2 * _SOME), (_TOP_PAD, 1 << 17))
    if done:  # memory freed by the parent is shared with it until it is written to, and would then exist twice
        ctypes.CDLL(None).malloc_trim(0)
    return done


def _set(*settings: tuple[int, int]) -> bool:
    if os.environ.get(SWITCH) == "0" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(name, value) == 1 for name, value in settings)
