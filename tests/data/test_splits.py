"""Images that two splits share."""

import os
import signal
from pathlib import Path

from tailprop.data.splits import Contents, count_shared


def test_pipes_are_not_read(tmp_path: Path) -> None:
    """Two pipes have the same size as an empty file; reading one would wait for someone to write into it."""
    os.mkfifo(tmp_path / "pipe")
    for name, content in (("a", b"x"), ("b", b"x"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
    known = Contents.of_files([tmp_path / "pipe", tmp_path / "empty", tmp_path / "a", tmp_path / "missing"])
    measured = Contents.of_files([tmp_path / "pipe", tmp_path / "b"])
    signal.alarm(60)  # a hang ends the tests
    assert count_shared(known, measured) == 1
    signal.alarm(0)
