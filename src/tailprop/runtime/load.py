"""How busy other programs keep the machine while something is measured."""

import os
import time
from pathlib import Path

__all__ = ["OtherLoad"]

_STAT = Path("/proc/stat")


class OtherLoad:
    """The cores that other programs used since this was created."""

    def __init__(self) -> None:
        self.began = _busy_seconds()

    def cores(self) -> float | None:
        """On average; None where the system does not say."""
        now = _busy_seconds()
        if self.began is None or now is None:
            return None
        others, clock = (after - before for before, after in zip(self.began, now, strict=True))
        return max(0.0, others / clock) if clock > 0 else 0.0


def _busy_seconds() -> tuple[float, float] | None:
    """Seconds that all cores computed for other programs, and the time."""
    if not _STAT.exists():
        return None
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, _STAT.read_text().splitlines()[0].split()[1:])
    busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    return busy - sum(os.times()[:4]), time.monotonic()
