"""Prefetching images, recognising image files, and output paths."""

import ast
import io
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tailprop.data.broken import Broken
from tailprop.data.formats.label_maps import Labelled, read_pair
from tailprop.data.images import (
    FORMATS,
    SUFFIXES,
    check_no_overwrite,
    image_size,
    is_image,
    open_image,
    prefetch,
    read_image,
    save_image,
    unique_paths,
)
from tailprop.data.raster import try_pixels
from tailprop.utils.text import printable
from tests.helpers import ROOT

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\n"


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


def test_postscript_named_png_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow decides by content, and would start Ghostscript."""
    path = tmp_path / "a.png"
    path.write_bytes(EPS)
    with Image.open(path) as file:
        assert file.format == "EPS"  # Pillow itself would open it
    monkeypatch.setattr(subprocess, "check_call", lambda *_args, **_how: pytest.fail("a program was started"))
    pair = Labelled(tmp_path / "b.jpg", path)
    for found in (read_image(path, "RGB"), image_size(path), try_pixels(path), read_pair(pair, 3, 0)):
        assert found == Broken(str(path), "not an image")
    with pytest.raises(OSError, match="cannot identify"):
        open_image(io.BytesIO(EPS))


def test_images_are_opened_in_one_place() -> None:
    for path in (ROOT / "src" / "tailprop").rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        opened = [call for call in calls if ast.unparse(call.func) in ("Image.open", "PIL.Image.open")]
        assert len(opened) == (path.name == "images.py"), path


def test_every_suffix_has_its_format(tmp_path: Path) -> None:
    Image.init()
    assert {Image.EXTENSION[suffix] for suffix in SUFFIXES} <= set(FORMATS)
    for suffix in (".png", ".jpg", ".gif", ".bmp", ".tif", ".webp", ".ppm", ".tga", ".jp2", ".qoi", ".avif"):
        Image.new("RGB", (40, 30), (200, 10, 10)).save(tmp_path / f"a{suffix}")
        assert isinstance(read_image(tmp_path / f"a{suffix}", "RGB"), Image.Image), suffix


def test_pipes_and_folders_are_broken_images(tmp_path: Path) -> None:
    """Opening a pipe would wait for someone to write into it."""
    os.mkfifo(tmp_path / "a.png")
    (tmp_path / "b.png").mkdir()
    for name, what in (("a.png", "a pipe, a socket or a device"), ("b.png", "a folder")):
        for found in (read_image(tmp_path / name, "RGB"), image_size(tmp_path / name), try_pixels(tmp_path / name)):
            assert isinstance(found, Broken)
            assert found.reason == f"it is not a file but {what}"


def test_dangling_link_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "a.png").symlink_to(tmp_path / "elsewhere.png")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"a\.png is a link to .*elsewhere\.png, which does not exist"):
            check_no_overwrite([], [tmp_path / "a.png"], overwrite)


def test_failed_write_of_an_image_names_it(tmp_path: Path) -> None:
    image = Image.fromarray(np.zeros((9, 9, 3), np.uint8))
    with pytest.raises(OSError, match=r"cannot write .*nowhere/a\.jpg \(No such file or directory\)"):
        save_image(tmp_path / "nowhere" / "a.jpg", image)
    save_image(tmp_path / "a.jpg", image)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jpg"]
