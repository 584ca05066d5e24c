"""Writing files: atomic, with the file's name in every error message, never through a planted link."""

from pathlib import Path

import pytest

from tailprop.utils.files import PART, explain_write_errors, write_atomically, write_text


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
