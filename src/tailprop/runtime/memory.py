"""Memory a process has used."""

import re
import resource
import sys
from pathlib import Path

__all__ = ["peak_bytes"]


def peak_bytes() -> int:
    """The most memory this process has used. Linux hands ru_maxrss on to a new program, which starts with its parent's peak."""
    status = Path("/proc/self/status")
    if status.is_file() and (found := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
