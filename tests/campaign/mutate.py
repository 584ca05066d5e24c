"""Mutations of bytes and of nested values, from a random number generator."""

import copy
from random import Random
from typing import Any, Final

__all__ = ["HOSTILE", "flip_bit", "mutate_bytes", "mutate_value", "places"]

# Values where something else is expected: of other types, empty, huge, not finite, hostile to a terminal or to a path.
HOSTILE: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**63, 10**30, -(10**30)),
    *(0.5, -0.5, 1e-300, 1e309, -1e309, float("nan"), 1e308),
    *("", "x", "none", "1", "[1]", "../../etc/passwd", "/etc/passwd", "\x1b[2J", "\u202eabc", "a\nb", "\x00", "x" * 10_000),
    *([], {}, [[]], [None], [1, 2], {"a": 1}, {"": {}}, [[[[[[[[1]]]]]]]], [float("inf")] * 4),
)
TOKENS: Final = (
    b"\x00",
    b"\xff" * 4,
    b"\x1b[2J",
    b"[" * 3000,
    b"{" * 3000,
    b'"',
    b"\xe2\x80\xae",
    b"\n",
    b"&a [*a]",
    b"!!python/name:os.x ",
)


def flip_bit(data: bytes, rng: Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def mutate_bytes(data: bytes, rng: Random, tail: int = 0) -> bytes:
    """One to four changes: flipped bits, other bytes, cuts, repeats, insertions. With `tail`, most are in the last bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not changed:
            break
        first = max(0, len(changed) - tail) if tail and rng.random() < 0.8 else 0
        at = rng.randrange(first, len(changed))
        kind = rng.randrange(7)
        if kind <= 1:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            changed[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif kind == 3:
            del changed[at : at + rng.choice((1, 4, 100, len(changed)))]
        elif kind == 4:
            changed[at:at] = rng.choice(TOKENS)
        elif kind == 5:
            changed[at:at] = changed[at : at + rng.choice((1, 8, 200))]
        else:
            changed[at : at + 8] = rng.randbytes(8)
    return bytes(changed)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in nested lists and mappings."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, item in items for inner in places(item, (*path, key)))]


def mutate_value(value: Any, rng: Random) -> Any:
    """The same nested value with one to three values replaced by hostile ones, removed, repeated or renamed."""
    changed = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        found = places(changed)[1:]
        if not found:
            return rng.choice(HOSTILE)
        *path, key = rng.choice(found)
        inner = changed
        for step in path:
            inner = inner[step]
        kind = rng.randrange(10)
        if kind == 0:
            del inner[key]
        elif kind == 1 and isinstance(inner, list):
            inner.append(copy.deepcopy(inner[key]))
        elif kind == 2 and isinstance(inner, dict):
            inner[f"{key}x"] = inner.pop(key)
        else:
            inner[key] = copy.deepcopy(rng.choice(HOSTILE))
    return changed
