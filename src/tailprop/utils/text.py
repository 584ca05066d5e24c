"""Text for messages: counts, lists, suggestions, and text from outside that is escaped before it is printed."""

import difflib
import os
import sys
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

__all__ = ["closest", "counted", "did_you_mean", "excerpt", "listed", "print_main", "printable", "say", "say_lines"]

# Control characters, surrogates, line and paragraph separators: a terminal executes them, or cannot encode them.
_ESCAPED: Final = ("Cc", "Cs", "Zl", "Zp")
# Format characters that are part of words in Persian, Indic scripts and emoji; the others reorder or hide text.
_JOINERS: Final = "\u200c\u200d"


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
    """Text from outside for one line of a terminal.

    Line breaks, control characters (a terminal executes them), marks that reorder or hide text, and undecodable bytes are
    escaped. Escaping twice changes nothing.
    """
    return text if text.isascii() and text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    kind = unicodedata.category(character)
    if kind in _ESCAPED or (kind == "Cf" and character not in _JOINERS):
        return character.encode("unicode_escape").decode()
    return character


def say(text: object, error: bool = False, flush: bool = False) -> None:
    """Print a line that may have text from outside in it: file names, class names, values of files."""
    print(printable(str(text)), file=sys.stderr if error else sys.stdout, flush=flush)


def print_main(text: str) -> None:
    """Print a line on standard error, on rank 0 only."""
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):  # the pipe is closed
            say(text, error=True)


def say_lines(text: object) -> None:
    """Print a report of several lines."""
    for line in str(text).split("\n"):
        say(line)


def excerpt(value: object, most: int = 40) -> str:
    """The start of a value for an error message."""
    text = repr(value) if isinstance(value, str) else str(value)
    return printable(text if len(text) <= most else f"{text[: most - 3]}...")
