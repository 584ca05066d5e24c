"""Numbers in sentences."""

import unicodedata

__all__ = ["counted", "printable"]


def counted(count: int, noun: str) -> str:
    """1 picture, 2 pictures, 2 classes."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


def printable(text: str) -> str:
    """A file name fit for one line of a terminal: line breaks, control characters and bytes that are no text, escaped."""
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)
