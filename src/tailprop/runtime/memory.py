"""Peak memory of the process."""

import re
import sys
from pathlib import Path

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

__all__ = ["peak_bytes"]


def peak_bytes() -> int:
    """Peak resident memory of this process; 0 where the system does not report it.

    VmHWM is preferred: on Linux ru_maxrss survives exec, so a new program starts with its parent's peak.
    """
    status = Path("/proc/self/status")
    if status.is_file() and (found := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return int(found[1]) * 1024
    if resource is None:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
