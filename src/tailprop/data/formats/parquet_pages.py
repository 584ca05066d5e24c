"""Random access to the values of a binary column of a parquet file, read in place.

Libraries read parquet by row groups: a hundred images or more are decompressed to read one. So snapshots are usually unpacked
once, as a whole, which for ImageNet takes another 140 GB of disk and the time to write them. But a row group is a sequence of
pages, and the header of each has its number of values. Here the headers of a group are read
once, at its first access, and then a value costs only its page: for an uncompressed page, as in recent snapshots, just its own
bytes; for a compressed one the whole page is decompressed, and some writers put a whole group into one page.

The format: https://parquet.apache.org/docs/file-format. Supported are flat binary columns, also inside a struct, with plain and
dictionary encoding, data pages of both versions, and the codecs of pyarrow. `can_read` checks whether a file is supported.
"""

import os
import resource
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, overload

import numpy as np

from tailprop.data.formats.parquet_headers import DATA, DATA_V2, DICTIONARY, Page, read_header, varint

__all__ = ["BinaryColumn", "can_read"]

_CODECS: Final = {
    "UNCOMPRESSED": None,
    "SNAPPY": "snappy",
    "GZIP": "gzip",
    "BROTLI": "brotli",
    "ZSTD": "zstd",
    "LZ4": "lz4_raw",  # pyarrow's name; the older format with Hadoop frames is not supported
}
_ENCODINGS: Final = {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}  # of values and levels
_PLAIN, _INDEXED = 0, (2, 8)  # encodings of values
_ALLOWED = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_BLOCK: Final = 4096
_LARGEST_PAGE: Final = 2**31 - 1  # bytes; a size has 32 bits
_OPEN: Final = 512 if _ALLOWED == resource.RLIM_INFINITY else min(512, _ALLOWED // 2)  # files kept open at a time


class File(NamedTuple):
    """The identity of a file; a file that was replaced has another one."""

    path: Path
    inode: int
    size: int
    changed_ns: int


class Region:
    """A part of a file, read when it is needed; like a memoryview, a slice is clamped to it.

    It is not mapped into memory: a file that is truncated while it is mapped ends the process with SIGBUS.
    """

    def __init__(self, file: "_Opened", start: int, end: int) -> None:
        self.file, self.start, self.end = file, start, max(start, min(end, file.size))

    def __len__(self) -> int:
        return self.end - self.start

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> memoryview: ...
    def __getitem__(self, key: int | slice) -> int | memoryview:
        if isinstance(key, slice):
            begin, end, _ = key.indices(len(self))
            return memoryview(self.file.read(self.start + begin, max(0, end - begin)))
        if not 0 <= key < len(self):
            raise IndexError(key)
        return self.file.byte(self.start + key)


class _Opened:
    """An open file, with the block of the last single byte that was read: headers are read byte by byte."""

    def __init__(self, path: Path, size: int) -> None:
        self.name, self.size = path.name, size
        self.descriptor = os.open(path, os.O_RDONLY)
        self.block, self.block_at = b"", 0

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    def read(self, at: int, count: int) -> bytes:
        data = os.pread(self.descriptor, count, at)
        if len(data) < count:
            raise OSError(f"{self.name} was truncated while it was read")
        return data

    def byte(self, at: int) -> int:
        block, block_at = self.block, self.block_at
        if not block_at <= at < block_at + len(block):
            block, block_at = self.read(at, min(_BLOCK, self.size - at)), at
            self.block, self.block_at = block, block_at
        return block[at - block_at]


Bytes = memoryview | Region


class Chunk(NamedTuple):
    """A column in a row group."""

    rows: int
    offset: int  # of its first page
    end: int
    unpacked_size: int  # of all its pages
    codec: str | None


class Layout(NamedTuple):
    """Positions of the values in a page."""

    places: np.ndarray | None  # index of each row's value, -1 for null; None = no row is null
    ends: "array[int]"  # where each plain value starts, with its length of four bytes, and where the last one ends
    indices: np.ndarray | None  # into the dictionary, for dictionary encoding


class BinaryColumn:
    """Values of one column of one file, by row; None for null.

    Args:
        path: The parquet file.
        name: The column, for example `image.bytes` for a field of a struct.
    """

    def __init__(self, path: Path, name: str) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self.file = File(path, *_identity(path))
        with pq.ParquetFile(path) as file:
            place = _place(file, name)
            self.depth = file.schema.column(place).max_definition_level
            groups = [file.metadata.row_group(g) for g in range(file.metadata.num_row_groups)]
            self.chunks = [_chunk(group.column(place), group.num_rows) for group in groups]
        self.starts = _starts(chunk.rows for chunk in self.chunks)
        self.pages: dict[int, tuple[list[int], list[Page], Page | None]] = {}  # of the row groups accessed so far
        self.layouts: dict[tuple[int, int], Layout] = {}  # of the pages accessed so far, by group and number

    def cost(self) -> int:
        """Bytes to decompress for a value of the first row group, from its headers."""
        if not self.chunks or self.chunks[0].codec is None:
            return 0
        _, pages, dictionary = self._index(self.chunks[0])
        return max((page.unpacked_size for page in pages), default=0) + (dictionary.unpacked_size if dictionary else 0)

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, row: int) -> memoryview | None:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        group = bisect_right(self.starts, row) - 1
        if group not in self.pages:
            self.pages[group] = self._index(self.chunks[group])
        starts, pages, dictionary = self.pages[group]
        number = bisect_right(starts, row - self.starts[group]) - 1
        if number == len(pages):
            raise OSError(f"{self.path.name} ends before its row {row}")
        codec = self.chunks[group].codec
        return self._value((group, number), pages[number], dictionary, row - self.starts[group] - starts[number], codec)

    def _index(self, chunk: Chunk) -> tuple[list[int], list[Page], Page | None]:
        """First rows of the data pages, the pages, and the dictionary if there is one."""
        pages: list[Page] = []
        try:
            for page in _pages(_region(self.file), chunk):
                pages.append(page)  # one by one: those before a corrupt page are usable
        except OSError:
            if not pages:
                raise
        data = [page for page in pages if page.kind != DICTIONARY]
        return _starts(page.rows for page in data), data, next((p for p in pages if p.kind == DICTIONARY), None)

    def _value(
        self, key: tuple[int, int], page: Page, dictionary: Page | None, row: int, codec: str | None
    ) -> memoryview | None:
        body: Bytes = _body(self.file, page, codec)
        if key not in self.layouts:
            self.layouts[key] = _lay_out(body, page, self.depth)
        layout = self.layouts[key]
        place = row if layout.places is None else int(layout.places[row])
        if place < 0:
            return None
        if layout.indices is None:
            return self._cut(layout, body, place)
        if dictionary is None:
            raise OSError(f"{self.path.name} has no dictionary")
        entries = (key[0], -1)
        body = _body(self.file, dictionary, codec)
        if entries not in self.layouts:
            self.layouts[entries] = Layout(None, _walk(body, 0, dictionary.rows), None)
        return self._cut(self.layouts[entries], body, int(layout.indices[place]))

    def _cut(self, layout: Layout, body: Bytes, place: int) -> memoryview:
        if place + 1 >= len(layout.ends):
            raise OSError(f"a page of {self.path.name} is corrupt")
        return body[layout.ends[place] + 4 : layout.ends[place + 1]]


def can_read(path: Path, name: str) -> bool:
    """Whether the encoding of a column is supported."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        place = _place(file, name)
        column = file.schema.column(place)
        if column.max_repetition_level > 0 or column.physical_type != "BYTE_ARRAY":
            return False
        chunks = (file.metadata.row_group(g).column(place) for g in range(file.metadata.num_row_groups))
        return all(chunk.compression in _CODECS and set(chunk.encodings) <= _ENCODINGS for chunk in chunks)


def _place(file: Any, name: str) -> int:
    names = [file.schema.column(i).path for i in range(len(file.schema))]
    if name not in names:
        raise ValueError(f"no column {name}; the columns are {', '.join(names)}")
    return names.index(name)


def _chunk(column: Any, rows: int) -> Chunk:
    first = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < first:  # some writers use 0 for none
        first = column.dictionary_page_offset
    return Chunk(rows, first, first + column.total_compressed_size, column.total_uncompressed_size, _CODECS[column.compression])


def _starts(sizes: Iterator[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts


def _identity(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(_OPEN)
def _opened(file: File) -> _Opened:
    return _Opened(file.path, file.size)


def _region(file: File, start: int = 0, end: int | None = None) -> Region:
    return Region(_opened(file), start, file.size if end is None else end)


def _pages(file: Region, chunk: Chunk) -> Iterator[Page]:
    at, rows = chunk.offset, 0
    while rows < chunk.rows and at < chunk.end:
        page, at = read_header(file, at)
        if not _fits(page, chunk) or at + page.size > min(chunk.end, len(file)):
            raise OSError("a page reaches beyond its column")
        at += page.size
        if page.kind in (DATA, DATA_V2, DICTIONARY):
            yield page
            rows += page.rows if page.kind != DICTIONARY else 0


def _fits(page: Page, chunk: Chunk) -> bool:
    """Whether the sizes in a page header are within its column: memory is allocated by them."""
    unpacked = page.unpacked_size
    sizes_fit = page.size >= 0 and 0 <= (page.levels or 0) <= unpacked <= min(chunk.unpacked_size, _LARGEST_PAGE)
    most = unpacked // 4 if page.kind == DICTIONARY else chunk.rows  # a dictionary may have more entries than rows
    return sizes_fit and 0 <= page.rows <= most


def _body(file: File, page: Page, codec: str | None) -> Bytes:
    if codec is None or not page.is_packed:
        return _region(file, page.offset, page.offset + page.size)
    return _unpack(file, page, codec)


@lru_cache(2)  # a page and its dictionary: sequential reads need them again
def _unpack(file: File, page: Page, codec: str) -> memoryview:
    import pyarrow as pa

    body = _region(file)[page.offset : page.offset + page.size]
    bare = page.levels or 0
    try:
        unpacked = memoryview(pa.decompress(body[bare:], page.unpacked_size - bare, codec=codec)).cast(
            "B"
        )  # it has signed bytes
    except MemoryError:  # Arrow's is also an ArrowException
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise OSError(f"a page cannot be decompressed: {' '.join(str(error).split())}") from None
    if bare == 0:
        return unpacked
    return memoryview(b"".join([body[:bare], unpacked]))


def _lay_out(body: Bytes, page: Page, depth: int) -> Layout:
    """Decode the definition levels, which mark null rows, and find the positions of the values."""
    first, places, count = page.levels or 0, None, page.rows
    if depth > 0:
        coded = body[:first]
        if page.levels is None:
            first = 4 + int.from_bytes(body[:4], "little")
            coded = body[4:first]
        is_there = _hybrid(coded, depth.bit_length(), page.rows) == depth
        count = int(is_there.sum())
        if count < page.rows:
            places = np.where(is_there, np.cumsum(is_there) - 1, -1)
    if page.encoding == _PLAIN:
        return Layout(places, _walk(body, first, count), None)
    if page.encoding not in _INDEXED:
        raise OSError(f"a page has the unsupported encoding {page.encoding}")
    if count == 0:
        return Layout(places, array("q"), np.empty(0, np.int64))
    if first >= len(body):
        raise OSError("a page is corrupt")
    return Layout(places, array("q"), _hybrid(body[first + 1 :], body[first], count))


def _walk(body: Bytes, first: int, count: int) -> "array[int]":
    found, end = array("q", [first]), len(body)
    while found[-1] + 4 <= end and len(found) <= count:
        found.append(found[-1] + 4 + int.from_bytes(body[found[-1] : found[-1] + 4], "little"))
    if found[-1] > end:  # the last one is truncated
        found.pop()
    return found


def _hybrid(coded: memoryview, bits: int, count: int) -> np.ndarray:
    """Decode `count` integers of `bits` bits from parquet's hybrid of run-length encoding and bit packing."""
    values, done, at = np.zeros(count, np.int64), 0, 0
    if bits == 0:  # a dictionary with a single entry
        return values
    if bits > 32:
        raise OSError("the levels of a page are corrupt")
    width = (bits + 7) // 8
    while done < count:
        try:
            head, at = varint(coded, at)
        except IndexError:
            raise OSError("the levels of a page are corrupt") from None
        if head & 1:
            size = min(head >> 1, -(-(count - done) // 8)) * bits  # as many groups of eight as needed
            packed = np.frombuffer(coded[at : at + size], np.uint8)
            at += (head >> 1) * bits
            single = np.unpackbits(packed, bitorder="little")
            group = single[: len(single) // bits * bits].reshape(-1, bits) @ (1 << np.arange(bits))
        else:
            group = np.full(min(head >> 1, count - done), int.from_bytes(coded[at : at + width], "little"))
            at += width
        group = group[: count - done]
        if len(group) == 0:
            raise OSError("the levels of a page are corrupt")
        values[done : done + len(group)] = group
        done += len(group)
    return values
