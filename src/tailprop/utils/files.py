"""Atomic writes: a file is written under a temporary name in the same folder, then renamed."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from safetensors import SafetensorError

from tailprop.utils.errors import dead_loader, missing_memory

__all__ = ["check_link", "explain_write_errors", "make_folder", "write_atomically", "write_json", "write_text"]

PART = ".part"  # suffix of a file being written; a leftover means that the process died, and can be deleted


def write_atomically(path: Path, write: Callable[[Path], object], also: Path | None = None, follow: bool = False) -> None:
    """Let `write` fill a temporary file, then rename it to `path`: readers see the complete old file or the complete new one.

    For a symbolic link the target is replaced. A link whose target does not exist is refused, except with `follow`, for the
    checkpoints of a run folder, which may be kept on another disk. A device or a pipe, such as /dev/stdout, is written to
    directly. With `also`, a copy appears under that second path first.
    """
    for link in () if follow else (path, also):
        check_link(link)
    with explain_write_errors(path):
        if path.exists() and not path.is_file():
            _copy_to_stream(path, write)
        else:
            _replace(path.resolve(), write, also)


def check_link(path: Path | None) -> None:
    """Raise for a link that leads nowhere: writing through it would create a file elsewhere."""
    if path is not None and path.is_symlink() and not path.exists():
        raise ValueError(f"{path} is a link to {path.readlink()}, which does not exist; remove the link")


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    make_folder(path.parent)
    write_text(path, json.dumps(content, indent=indent, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8", errors="backslashreplace"))


def make_folder(path: Path) -> None:
    """Create a folder for results, with its parents."""
    with explain_write_errors(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Name the path and the fix in the error message when a write fails."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors report a full disk in their own ways
        # Out of memory, or a loader process that died, which PyTorch raises wherever the main process happens to be.
        if missing_memory(error) is not None or dead_loader(error) is not None:
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        hint = "; free some disk space and try again" if _is_full_disk(error) else ""
        raise OSError(f"cannot write {path} ({reason}); files saved before are intact{hint}") from error


def _is_full_disk(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    words = "failed writing file|unexpected pos|iostream error|no space left|file too large|quota"  # PyTorch's and safetensors'
    return re.search(words, str(error), re.IGNORECASE) is not None


def _replace(path: Path, write: Callable[[Path], object], also: Path | None) -> None:
    part = path.with_name(path.name + PART)
    try:
        part.unlink(missing_ok=True)  # a link of that name would be written through
        write(part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.chmod(0o666 & ~_umask())  # safetensors creates files that only their owner can read
        if also is not None:
            _copy(part, also.resolve())
        part.replace(path)
    except (OSError, RuntimeError, SafetensorError):
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _copy_to_stream(path: Path, write: Callable[[Path], object]) -> None:
    """Write through a temporary file: torch needs to seek, and safetensors would replace a device by a file."""
    with TemporaryDirectory() as folder:
        whole = Path(folder, "whole")
        write(whole)
        with whole.open("rb") as file, _open_stream(path) as stream:
            shutil.copyfileobj(file, stream)


def _open_stream(path: Path) -> IO[bytes]:
    """Open a device or a pipe. Opening a pipe would wait for someone who reads it; nobody may ever do."""
    if not path.is_fifo():
        return path.open("wb")
    try:
        stream = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError("it is a pipe that nobody reads") from None
        raise
    os.set_blocking(stream, True)
    return open(stream, "wb")  # noqa: PTH123 - a descriptor


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _copy(part: Path, path: Path) -> None:
    """A second file with the same content. Not a hard link: damage to one must not be damage to the other."""
    second = path.with_name(path.name + PART)
    second.unlink(missing_ok=True)
    try:
        shutil.copyfile(part, second)
        with second.open("rb+") as file:
            os.fsync(file.fileno())
        second.chmod(0o666 & ~_umask())
        second.replace(path)
    except OSError:
        second.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
