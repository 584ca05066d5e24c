"""Objects drawn on pictures."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tailprop.drawing import JPEG_PX, Drawn, _font, draw_objects, draw_page


@pytest.mark.parametrize(
    ("size", "drawn"),
    [((64, 64), (384, 384)), ((640, 480), (640, 480)), ((400, 2), (4000, 20)), ((1, 5000), (1, 5000))],
)
def test_small_pictures_are_enlarged_within_bounds(size: tuple[int, int], drawn: tuple[int, int]) -> None:
    assert draw_objects(Image.new("RGB", size), [Drawn((0, 0, 1, 1), "a", 1)]).size == drawn


def test_a_picture_longer_than_a_jpeg_can_be_is_reduced(tmp_path: Path) -> None:
    drawn = draw_objects(Image.new("RGB", (70_000, 1)), [Drawn((60_000, 0, 9_000, 1), "a", 1)])
    drawn.save(tmp_path / "a.jpg")
    assert drawn.size == (JPEG_PX, 1)


def test_a_page_of_thin_pictures_stays_small(tmp_path: Path) -> None:
    draw_page([Image.new("RGB", (1, 3000)), Image.new("RGB", (3000, 1))], tmp_path / "page.jpg")
    with Image.open(tmp_path / "page.jpg") as page:
        assert page.size == (1280, 640)


def test_names_in_other_alphabets_are_drawn() -> None:
    missing = _shape("\uffff")  # a character no font has
    for letter in "жωñאλ":
        assert not np.array_equal(_shape(letter), missing)


def _shape(letter: str) -> np.ndarray:
    return np.array(_font(30).getmask(letter))
