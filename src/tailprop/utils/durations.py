"""Durations as people write them: 45s, 30m, 1h30m."""

import re

from tailprop.utils.text import excerpt

__all__ = ["duration_text", "parse_duration"]

_FORM = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_SECONDS = (86400, 3600, 60, 1)  # of the units in _FORM


def parse_duration(text: str, name: str) -> float:
    """Seconds; `name` is the option in the error message."""
    found = _FORM.fullmatch(text.strip().lower().replace(" ", ""))
    if found is None or not any(found.groups()):
        raise ValueError(f"{name} must be a time with units, such as 45s, 30m or 1h30m; got {excerpt(text)}")
    return sum(float(number) * seconds for number, seconds in zip(found.groups(), _SECONDS, strict=True) if number)


def duration_text(seconds: float) -> str:
    """12 s, 3.5 min, 2.1 h, 4.0 days."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
