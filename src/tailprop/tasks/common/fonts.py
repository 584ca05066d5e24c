"""Fonts that have the characters of a text: matplotlib's own, or one of those that are installed."""

from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from PIL import ImageFont

from tailprop.utils.text import print_main

__all__ = ["drawable", "drawable_names", "families_for", "load_font", "missing_characters"]

DEFAULT = "DejaVu Sans"  # comes with matplotlib; has Latin, Greek, Cyrillic, Hebrew and Arabic
BOX = "\u25a1"  # in place of a character that no installed font has
_LAST_RESORT = "Last Resort"  # fonts that come with matplotlib and have a box for every character there is


@lru_cache(256)
def load_font(size: int, text: str = "") -> ImageFont.FreeTypeFont:
    """A font for Pillow with all characters of the text, or the one that has most of them."""
    return ImageFont.truetype(_best_font(frozenset(text)), size)


def families_for(texts: Iterable[str]) -> list[str]:
    """Font families for matplotlib, which looks a character up in one after the other."""
    wanted = _uncovered(_default_path(), frozenset("".join(texts)))
    families = [DEFAULT]
    for path, name in _installed():
        if not wanted:
            break
        left = _uncovered(path, wanted)
        if left != wanted:
            families.append(name)
            wanted = left
    return families


def missing_characters(texts: Iterable[str]) -> str:
    """The characters that no installed font has."""
    wanted = _uncovered(_default_path(), frozenset("".join(texts)))
    for path, _ in _installed() if wanted else ():
        wanted = _uncovered(path, wanted)
    return "".join(sorted(wanted))


def drawable(texts: Iterable[str]) -> list[str]:
    """Texts with a box in place of every character that no installed font has; says so once, and how to fix it."""
    texts = list(texts)
    missing = missing_characters(texts)
    if missing:
        _warn_once(missing)
    return [text.translate(dict.fromkeys(map(ord, missing), BOX)) for text in texts]


def drawable_names(names: Iterable[str]) -> list[str]:
    """Drawable class names; those that boxes would make equal get their index."""
    drawn = drawable(names)
    repeated = {name for name in drawn if BOX in name and drawn.count(name) > 1}
    return [f"{index}: {name}" if name in repeated else name for index, name in enumerate(drawn)]


_said: set[str] = set()  # what users were told


def _warn_once(characters: str) -> None:
    shown = characters[:10] + ("\u2026" if len(characters) > 10 else "")
    if not _said:
        _said.add(characters)
        print_main(f"no installed font has {shown!r}; figures show boxes there; install a font, for example Noto Sans CJK")


def _best_font(characters: frozenset[str]) -> str:
    default = _default_path()
    least, best = len(_uncovered(default, characters)), default
    for path, _ in _installed() if least else ():
        if (left := len(_uncovered(path, characters))) < least:
            least, best = left, path
        if not least:
            break
    return best


def _uncovered(path: str, characters: frozenset[str]) -> frozenset[str]:
    known = _characters(path)
    return frozenset(c for c in characters if ord(c) not in known and not c.isspace() and c.isprintable())


@cache
def _characters(path: str) -> frozenset[int]:
    from matplotlib.font_manager import get_font

    try:
        font: Any = get_font(path)
        return frozenset(font.get_charmap())
    except (OSError, RuntimeError):  # a font that FreeType cannot open
        return frozenset()


def _default_path() -> str:
    import matplotlib

    return str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"))


@cache
def _installed() -> tuple[tuple[str, str], ...]:
    """Path and family of every regular font, sans serif first."""
    from matplotlib.font_manager import fontManager

    regular = (f for f in fontManager.ttflist if f.style == "normal" and f.weight in (400, "normal", "regular"))
    fonts = {f.name: f.fname for f in regular if not f.name.startswith(_LAST_RESORT)}
    return tuple(
        (path, name) for name, path in sorted(fonts.items(), key=lambda item: ("sans" not in item[0].lower(), item[0]))
    )
