"""Writing files: atomic, with the file's name in every error message, never through a planted link."""

import ast
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailprop.utils.files import PART, explain_write_errors, make_folder, write_atomically, write_json, write_text
from tests.helpers import ROOT

READERS = ("read_bytes", "read_text")
# files of this package or of the system, a file whose kind was checked before, or the function of `utils/parsing.py` itself
READ_DIRECTLY = {
    "backbone/linear.py": 1,
    "data/formats/label_maps.py": 1,
    "data/splits.py": 1,
    "engine/integrity.py": 3,
    "engine/onnx_file.py": 1,
    "engine/quantize.py": 1,
    "engine/run_folder.py": 1,
    "runtime/distributed.py": 1,
    "runtime/load.py": 1,
    "runtime/memory.py": 1,
    "runtime/provenance.py": 1,
    "studies/ablate/runner.py": 1,
    "studies/robustness.py": 1,
    "tasks/segment/report.py": 1,
    "utils/parsing.py": 1,
}
WRITERS = ("save", "savefig", "save_file", "to_parquet", "write_bytes", "write_text")
# into a buffer in memory, or a function that `write_atomically` calls
IN_MEMORY = {
    "app/runs.py": 1,
    "data/shapes/write.py": 1,
    "engine/checkpoint.py": 1,
    "studies/corruptions.py": 1,
    "studies/loader.py": 1,
    "tasks/restore/degrade.py": 1,
}


def test_dangling_link_is_refused(tmp_path: Path) -> None:
    link, target = tmp_path / "a.txt", tmp_path / "elsewhere" / "b.txt"
    target.parent.mkdir()
    link.symlink_to(target)
    with pytest.raises(ValueError, match=r"a\.txt is a link to .*b\.txt, which does not exist; remove the link"):
        write_text(link, "x")
    assert not target.exists()
    target.write_text("old")
    write_text(link, "new")  # a link to a file that exists is followed, so that results may be kept on another disk
    assert target.read_text() == "new"


def test_planted_temporary_link_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f"a.txt{PART}").symlink_to(victim)
    write_text(tmp_path / "a.txt", "x")
    assert (victim.read_text(), (tmp_path / "a.txt").read_text()) == ("precious", "x")


def test_second_path_is_a_copy_of_its_own(tmp_path: Path) -> None:
    """Damage to last.pt must not be damage to best.pt."""
    one, two = tmp_path / "one", tmp_path / "two"
    write_atomically(one, lambda part: part.write_text("x"), also=two)
    one.write_text("damaged")
    assert two.read_text() == "x"


def test_dead_loader_process_is_not_a_write_error(tmp_path: Path) -> None:
    """PyTorch raises it wherever the main process happens to be, for example inside torch.save."""
    killed = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
    with pytest.raises(RuntimeError, match="is killed by signal"), explain_write_errors(tmp_path / "last.pt"):
        raise killed
    with pytest.raises(OSError, match=r"cannot write .*last\.pt"), explain_write_errors(tmp_path / "last.pt"):
        raise RuntimeError("unexpected pos 64 vs 0")


@pytest.mark.parametrize("act", [lambda path: write_text(path / "a", "x"), lambda path: write_json(path / "a", 1), make_folder])
def test_every_failure_names_its_path(act: object, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match=r"cannot write .*/file"):
        act(tmp_path / "file" / "below")


def direct_writes(node: ast.AST) -> Iterator[int]:
    """Lines that write a file, outside of a function given to `write_atomically` and of `with explain_write_errors(path)`."""
    for child in ast.iter_child_nodes(node):
        explained = isinstance(child, ast.With) and "explain_write_errors" in ast.unparse(child.items[0])
        if isinstance(child, ast.Lambda) or explained or (isinstance(child, ast.FunctionDef) and child.name == "write"):
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr in WRITERS:
            owner = ast.unparse(child.func.value)
            if not owner.endswith(("checkpoint", "persistence")):  # our own functions of that name
                yield child.lineno
        yield from direct_writes(child)


def test_files_are_written_where_errors_are_explained() -> None:
    """A full disk is then reported with the name of the file, whichever command writes it."""
    for path in (ROOT / "src" / "tailprop").rglob("*.py"):
        name = path.relative_to(ROOT / "src" / "tailprop").as_posix()
        found = list(direct_writes(ast.parse(path.read_text())))
        assert len(found) <= IN_MEMORY.get(name, 0), f"{name}: {found}"


def direct_reads(tree: ast.AST) -> list[int]:
    """Lines that read a whole file without the functions of `utils/parsing.py`."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [called.lineno for called in calls if isinstance(called, ast.Attribute) and called.attr in READERS]


def test_files_from_outside_are_read_in_one_place() -> None:
    """There a pipe is refused, and text that is not UTF-8 is reported with the name of the file."""
    for path in (ROOT / "src" / "tailprop").rglob("*.py"):
        name = path.relative_to(ROOT / "src" / "tailprop").as_posix()
        found = direct_reads(ast.parse(path.read_text()))
        assert len(found) <= READ_DIRECTLY.get(name, 0), f"{name}: {found}"


def test_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "classes.txt"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=r"cannot write .*classes\.txt \(it is a pipe that nobody reads\)"):
        write_text(pipe, "x")
    reader = os.open(pipe, os.O_RDWR)  # which is never at an end
    thread = threading.Thread(target=write_text, args=(pipe, "y" * 200_000), daemon=True)  # more than a pipe holds
    thread.start()
    received = b""
    while len(received) < 200_000:
        received += os.read(reader, 65536)
    thread.join()
    os.close(reader)
    assert received == b"y" * 200_000
