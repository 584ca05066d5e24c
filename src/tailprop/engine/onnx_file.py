"""The parts of an ONNX file that are read before onnxruntime sees it, without onnx, onnxruntime or PyTorch.

An ONNX file is a protocol buffer: fields of a number, a kind and a value, nested. Two things are read: the metadata, which are
text, and whether a tensor is stored in another file, which an untrusted file could use to name any file of the machine.

The last entry of the metadata is the SHA-256 of all bytes before it: a flipped bit in the weights would be another answer.
"""

import hashlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tailprop.utils.files import explain_write_errors
from tailprop.utils.text import excerpt

__all__ = ["read_onnx_metadata", "seal_onnx"]

_MOST_FIELDS: Final = 3_000_000  # of the graph; a network of a thousand layers has some ten thousand
_MOST_TEXT: Final = 1 << 25  # bytes of metadata
_DEEPEST: Final = 24  # graphs within graphs
_SEAL: Final = b"\x72\x4a\x0a\x06sha256\x12\x40"  # a metadata entry of 74 bytes: the key sha256, and a value of 64 bytes
_SEAL_SIZE: Final = len(_SEAL) + 64
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Fields of ModelProto, and of the messages on the way to a TensorProto: number of the field: kind of message.
_METADATA: Final = 14
_INSIDE: Final[dict[str, dict[int, str]]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_EXTERNAL: Final = (13, 14)  # fields of a tensor: external_data, data_location


def read_onnx_metadata(path: Path) -> dict[str, str]:
    """The metadata of an ONNX file; raises if it is not one, or if it takes tensors from other files."""
    if not path.is_file():
        raise ValueError(f"no file at {path}")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is not an ONNX file: it is empty")
    with path.open("rb") as file:  # the map is closed when nothing refers to it: an error message may keep a part of it
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        _check_seal(path, whole)
        return _Reader(path).read(whole)


def seal_onnx(path: Path) -> None:
    """Append the hash of an ONNX file to its metadata: parts of a protocol buffer may come in any order."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with explain_write_errors(path), path.open("ab") as file:
        file.write(_SEAL + digest.encode())


def _check_seal(path: Path, whole: memoryview) -> None:
    """Raise if a file was damaged since it was written; files without a hash pass."""
    if bytes(whole[-_SEAL_SIZE:-64]) == _SEAL and hashlib.sha256(whole[:-_SEAL_SIZE]).hexdigest().encode() != whole[-64:]:
        raise ValueError(f"{path} is corrupt (its SHA-256 does not match)")


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0

    def read(self, whole: memoryview) -> dict[str, str]:
        found: dict[str, str] = {}
        has_graph = False
        size = 0
        for number, value in self._fields(whole):
            if number == _METADATA and value is not None:
                size += len(value)
                if size > _MOST_TEXT:
                    raise ValueError(f"{self.path} has more than {_MOST_TEXT >> 20} MB of metadata")
                key, text = self._entry(value)
                found[key] = text
            elif value is not None and number in _INSIDE["model"]:
                has_graph = has_graph or number == 7
                self._check(value, _INSIDE["model"][number], 0)
        if not has_graph:
            raise ValueError(f"{self.path} is not an ONNX file: it has no graph")
        return found

    def _entry(self, value: memoryview) -> tuple[str, str]:
        parts = {number: bytes(text) for number, text in self._fields(value) if text is not None}
        try:
            return parts.get(1, b"").decode(), parts.get(2, b"").decode()
        except UnicodeDecodeError:
            raise ValueError(f"{self.path} has metadata that are not text: {excerpt(parts.get(1, b''))}") from None

    def _check(self, message: memoryview, kind: str, depth: int) -> None:
        """Raise for a tensor in another file."""
        if depth > _DEEPEST:
            raise ValueError(f"{self.path} is not usable: its graphs are nested too deeply")
        inside = _INSIDE[kind]
        for number, value in self._fields(message):
            if kind == "tensor" and number in _EXTERNAL and value is not None:
                raise ValueError(
                    f"{self.path} keeps tensors in other files, which is not supported; export it again into one file"
                )
            if value is not None and number in inside:
                self._check(value, inside[number], depth + 1)

    def _fields(self, message: memoryview) -> Iterator[tuple[int, memoryview | None]]:
        """Number and bytes of every field; None for numbers, except a location that is not in the file."""
        at, end = 0, len(message)
        while at < end:
            self.count += 1
            if self.count > _MOST_FIELDS:
                raise ValueError(f"{self.path} is not usable: it has too many parts")
            tag, at = self._varint(message, at)
            number, kind = tag >> 3, tag & 7
            if kind == _BYTES:
                length, at = self._varint(message, at)
                if length > end - at:
                    raise self._damaged()
                yield number, message[at : at + length]
                at += length
            elif kind == _VARINT:
                value, at = self._varint(message, at)
                yield number, message[:0] if number == _EXTERNAL[1] and value == 1 else None
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
                if at > end:
                    raise self._damaged()
                yield number, None
            else:
                raise self._damaged()

    def _varint(self, message: memoryview, at: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if at >= len(message):
                break
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, at
        raise self._damaged()

    def _damaged(self) -> ValueError:
        return ValueError(f"{self.path} is not an ONNX file, or is corrupt")
