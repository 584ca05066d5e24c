"""Damaged files are noticed before they are used: checksums of checkpoints and exported weights, and finite numbers only.

A PyTorch checkpoint is a zip archive with a CRC for every record, which torch.load does not compare. Exported weights get the
SHA-256 of the whole file, header included, into their metadata. It protects against damage, not against forgery. SHA-256 was
chosen because most processors have instructions for it, it needs no dependency, and it also identifies the weights. A CRC is
faster, but was made for short messages. results/verify.csv has the time for the checkpoint of Base.
"""

import hashlib
import os
import re
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor

from tailprop.utils.errors import first_line
from tailprop.utils.files import write_text

__all__ = [
    "UNSEALED",
    "NotFiniteError",
    "check_all_finite",
    "check_intact",
    "is_intact",
    "matches_digest",
    "seal",
    "write_digest",
]

_NAME: Final = "sha256"
UNSEALED: Final = {_NAME: "0" * 64}  # metadata of weights before `seal`
_PLACE: Final = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_BLOCK: Final = 1 << 22
_ZIP: Final = b"PK\x03\x04"


class NotFiniteError(ValueError):
    """A tensor that would be saved is not finite."""


def seal(path: Path) -> None:
    """Write the hash of a safetensors file into its metadata, which were saved with `UNSEALED`."""
    with path.open("rb+") as file:
        start, digest = _digest(path, file)
        file.seek(start)
        file.write(digest.encode())


def check_intact(path: Path) -> None:
    """Raise if a checkpoint or exported weights were damaged since they were written; files without a hash pass."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for someone to write into it
        raise ValueError(f"{path} is not a file")
    _check(path, found.st_ino, found.st_size, found.st_mtime_ns)


def is_intact(path: Path) -> bool:
    """Whether a file exists and is not damaged."""
    try:
        check_intact(path)
    except (ValueError, OSError):
        return False
    return True


def write_digest(path: Path) -> None:
    """Write the hash of a file beside it, as `sha256sum` does: for formats that have no place for it."""
    write_text(digest_path(path), f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")


def matches_digest(path: Path) -> bool:
    """Whether a file is as it was when `write_digest` was called; files without a hash are taken as they are."""
    beside = digest_path(path)
    return not beside.is_file() or beside.read_bytes()[:64] == hashlib.sha256(path.read_bytes()).hexdigest().encode()


def digest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


@lru_cache(16)  # a file is checked once, not before each of the reads that follow
def _check(path: Path, _inode: int, _size: int, _changed_ns: int) -> None:
    if path.suffix == ".safetensors":
        _check_weights(path)
        return
    with path.open("rb") as file:
        is_archive = file.read(4) == _ZIP
    if is_archive:  # others are pickles of old versions of PyTorch, without checksums
        _check_archive(path)


def _check_archive(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
    except OSError:
        raise
    except Exception as error:  # BadZipFile, EOFError, NotImplementedError, zlib.error, ...
        raise ValueError(f"{path} is corrupt ({first_line(error)})") from None
    if wrong is not None:
        raise ValueError(f"{path} is corrupt (the checksum of its record {wrong!r} does not match)")


def _check_weights(path: Path) -> None:
    with path.open("rb") as file:
        try:
            start, digest = _digest(path, file)
        except ValueError:
            raise
        except LookupError:  # weights of an earlier version, or of another program: no hash
            start, digest = 0, ""
        if start:
            file.seek(start)
            if file.read(64) != digest.encode():
                raise ValueError(f"{path} is corrupt (its SHA-256 does not match)")
    try:
        with safe_open(path, framework="pt"):
            pass
    except Exception as error:
        raise ValueError(f"{path} is not a safetensors file, or is corrupt ({first_line(error)})") from None


def _digest(path: Path, file: Any) -> tuple[int, str]:
    """Where the hash is stored, and what it should be: the hash of the file with zeros in its place."""
    size = os.fstat(file.fileno()).st_size
    head = file.read(8)
    length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
    if length > size - 8:
        raise ValueError(f"{path} is not a safetensors file, or is truncated")
    header = file.read(length)
    found = _PLACE.search(header)
    if found is None:
        raise LookupError
    zeroed = header[: found.start(1)] + b"0" * 64 + header[found.end(1) :]
    digest = hashlib.sha256(head + zeroed)
    while block := file.read(_BLOCK):
        digest.update(block)
    return 8 + found.start(1), digest.hexdigest()


def check_all_finite(content: Mapping[str, Any]) -> None:
    """Raise if a tensor in a nested state is not finite; the error has its name."""
    for name, value in _tensors(content, ""):
        if value.is_floating_point() and value.numel() > 0 and not _is_finite(value):
            raise NotFiniteError(f"{name} is not finite")


def _is_finite(value: Tensor) -> bool:
    """The extremes are NaN if any element is. One pass without a copy; `isfinite` would allocate a mask."""
    low, high = torch.aminmax(value.detach())
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _tensors(content: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(content, Tensor):
        yield name, content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _tensors(value, f"{name}.{key}" if name else str(key))
    elif isinstance(content, list | tuple):
        for place, value in enumerate(content):
            yield from _tensors(value, f"{name}.{place}")
