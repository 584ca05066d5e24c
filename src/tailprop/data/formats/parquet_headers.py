"""Headers of parquet pages: a few fields in Thrift's compact protocol, which pyarrow does not expose.

The format: https://parquet.apache.org/docs/file-format and https://github.com/apache/thrift/blob/master/doc/specs.
"""

from typing import Any, Final, NamedTuple, Protocol

__all__ = ["DATA", "DATA_V2", "DICTIONARY", "Page", "read_header", "varint"]

DATA, DICTIONARY, DATA_V2 = 0, 2, 3  # page types
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, 12  # field types
_DEEPEST: Final = 8  # nesting of structs; a corrupt file must not recurse further
_BITS: Final = 63  # of the largest integer


class Bytes(Protocol):
    """Bytes in memory or in a file."""

    def __getitem__(self, key: int, /) -> int: ...


class Page(NamedTuple):
    """A page of values. `levels` is the size of the definition levels before them, which version 2 never compresses."""

    kind: int
    rows: int
    encoding: int
    offset: int  # of the data after the header
    size: int
    unpacked_size: int
    levels: int | None  # None in version 1, where they are part of the data
    is_packed: bool


def read_header(data: Bytes, at: int) -> tuple[Page, int]:
    """The page whose header starts at an offset, and where the header ends; raises OSError if it is corrupt."""
    page: Page | None
    try:
        fields, at = _struct(data, at, 0)
        page = _page(fields, at)
    except (IndexError, KeyError, TypeError, AttributeError):
        page = None
    if page is None or not all(type(number) is int for number in page[:6]):
        raise OSError("a page header is corrupt")
    return page, at


def _page(header: dict[int, Any], offset: int) -> Page:
    kind, unpacked, size = header[1], header[2], header[3]
    if kind == DATA:
        about = header[5]
        return Page(kind, about[1], about[2], offset, size, unpacked, None, True)
    if kind == DATA_V2:
        about = header[8]
        return Page(kind, about[1], about[4], offset, size, unpacked, about[5] + about[6], about.get(7, True))
    about = header.get(7, {})
    return Page(kind, about.get(1, 0), about.get(2, 0), offset, size, unpacked, 0, True)


def _struct(data: Bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """The fields of a struct by their numbers, and where it ends."""
    if depth > _DEEPEST:
        raise KeyError("too deep")
    fields: dict[int, Any] = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _zigzag(data, at)
        fields[number], at = _field(data, at, head & 15, depth)
    return fields, at + 1


def _field(data: Bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    if kind in _INTEGERS:
        return _zigzag(data, at)
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind == _BINARY:  # statistics such as minimum and maximum: not needed here
        length, at = varint(data, at)
        return None, at + length
    return None, at + {_BYTE: 1, _DOUBLE: 8}[kind]


def varint(data: Bytes, at: int) -> tuple[int, int]:
    """An integer with seven bits in each byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        if shift > _BITS:
            raise IndexError("unterminated varint")
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def _zigzag(data: Bytes, at: int) -> tuple[int, int]:
    value, at = varint(data, at)
    return (value >> 1) ^ -(value & 1), at
