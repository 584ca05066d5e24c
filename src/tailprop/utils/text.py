"""Text for messages: counts, lists, suggestions, and escaped file names."""

import difflib
import unicodedata
from collections.abc import Sequence

__all__ = ["closest", "counted", "did_you_mean", "listed", "printable"]


def counted(count: int, noun: str) -> str:
    """1 image, 2 images, 2 classes."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first few names of a list, and how many more there are."""
    shown = ", ".join(map(printable, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def closest(name: str, known: Sequence[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known names most similar to `name`."""
    return difflib.get_close_matches(name, known, n=most, cutoff=cutoff)


def did_you_mean(name: str, known: Sequence[str], prefix: str = "", otherwise: str | None = None) -> str:
    """A hint for an unknown name: the closest known name, or all of them."""
    if close := closest(name, known):
        return f"did you mean {prefix}{close[0]}?"
    return otherwise or f"choose one of {', '.join(known) or 'none'}"


def printable(text: str) -> str:
    """A file name for one line of a terminal: line breaks, control characters and undecodable bytes are escaped."""
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)
