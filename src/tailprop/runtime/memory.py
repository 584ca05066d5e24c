"""Memory a process has used."""

import re
import sys
from pathlib import Path

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

__all__ = ["peak_bytes"]


def peak_bytes() -> int:
    """The most memory this process has used, 0 where the system does not say.

    Linux hands ru_maxrss on to a new program, which starts with its parent's peak.
    """
    status = Path("/proc/self/status")
    if status.is_file() and (found := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return int(found[1]) * 1024
    if resource is None:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
