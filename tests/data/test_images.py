"""Prefetching images, recognising image files, and output paths."""

from pathlib import Path

import pytest

from tailprop.data.images import check_no_overwrite, is_image, prefetch, unique_paths
from tailprop.utils.text import printable


def test_prefetch_keeps_order_and_stays_one_batch_ahead() -> None:
    started: list[Path] = []

    def read(path: Path) -> str:
        started.append(path)
        return path.name

    paths = [Path(str(i)) for i in range(7)]
    seen = []
    for examples in prefetch(paths, read, batch=2, threads=3):
        seen.append([name for path, name in examples if path.name == name])
        assert len(started) <= 2 * len(seen) + 2
    assert seen == [["0", "1"], ["2", "3"], ["4", "5"], ["6"]]


def test_prefetch_propagates_errors() -> None:
    def read(path: Path) -> str:
        raise RuntimeError(path.name)

    with pytest.raises(RuntimeError, match="a"):
        list(prefetch([Path("a"), Path("b")], read, batch=1))


def test_small_helpers() -> None:
    assert is_image(Path("A.JPeG"))
    assert not is_image(Path("jpg"))
    assert printable("Screenshot 1\u202fPM é.png") == "Screenshot 1\u202fPM é.png"
    assert printable("a\nb\x1b\udce9") == r"a\nb\x1b\udce9"


def test_outputs_never_overwrite_input_images(tmp_path: Path) -> None:
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(b"")
    other = tmp_path / "other.jpg"
    other.write_bytes(b"")
    check_no_overwrite([photo], [tmp_path / "drawn" / "photo.jpg"], overwrite=False)
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="would be overwritten"):
            check_no_overwrite([photo], [tmp_path / "drawn" / ".." / "photo.jpg"], overwrite)
    with pytest.raises(ValueError, match=r"other\.jpg exists; .* --overwrite"):
        check_no_overwrite([photo], [other], overwrite=False)
    check_no_overwrite([photo], [other], overwrite=True)


def test_output_paths_are_unique() -> None:
    images = [Path(name) for name in ("a.jpg", "a.png", "a.png.jpg", "a_2.jpg", "sub/a.jpg")]
    answers = unique_paths(images)
    assert [str(path) for path in answers] == ["a", "a_2", "a.png", "a_2_2", "sub/a"]
