"""Objects drawn on images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tailprop.data.formats.coco import read_coco
from tailprop.data.shapes.render import SceneConfig
from tailprop.data.shapes.write import write_coco
from tailprop.tasks.common.fonts import load_font
from tailprop.tasks.common.pages import GAP_PX, draw_page
from tailprop.tasks.detect.draw import JPEG_PX, Drawn, _edge, draw_objects, truth_of


@pytest.mark.parametrize(
    ("size", "drawn"),
    [((64, 64), (384, 384)), ((640, 480), (640, 480)), ((400, 2), (4000, 20)), ((1, 5000), (1, 5000))],
)
def test_small_images_are_enlarged_within_bounds(size: tuple[int, int], drawn: tuple[int, int]) -> None:
    assert draw_objects(Image.new("RGB", size), [Drawn((0, 0, 1, 1), "a", 1)]).size == drawn


def test_image_beyond_the_jpeg_limit_is_downscaled(tmp_path: Path) -> None:
    drawn = draw_objects(Image.new("RGB", (70_000, 1)), [Drawn((60_000, 0, 9_000, 1), "a", 1)])
    drawn.save(tmp_path / "a.jpg")
    assert drawn.size == (JPEG_PX, 1)


def test_page_of_thin_images_stays_small(tmp_path: Path) -> None:
    draw_page([Image.new("RGB", (1, 3000)), Image.new("RGB", (3000, 1))], tmp_path / "page.jpg")
    with Image.open(tmp_path / "page.jpg") as page:
        assert page.size == (1280 + 3 * GAP_PX, 640)


def test_masks_have_an_edge() -> None:
    mask = np.zeros((5, 6), dtype=bool)
    mask[1:, 1:5] = True
    edge = np.zeros_like(mask)
    edge[1, 1:5] = edge[1:, 1] = edge[1:, 4] = True  # not at the border of the image
    assert (_edge(mask) == edge).all()
    beside = [Drawn((0, 0, 5, 10), "a", 1, _half(0)), Drawn((5, 0, 5, 10), "a", 1, _half(5))]
    pixels = np.asarray(draw_objects(Image.new("RGB", (10, 10)), beside, least_px=10))
    assert (pixels[9, 4:6] != pixels[9, 2]).any(1).all()  # neighbours of one class have an edge between them


def _half(left: int) -> np.ndarray:
    mask = np.zeros((10, 10), dtype=np.uint8)
    mask[:, left : left + 5] = 1
    return mask


def test_ground_truth_is_drawn_with_masks(tmp_path: Path) -> None:
    write_coco(tmp_path, SceneConfig(size_px=64, crowd=0.0), 1, 1)
    (image,) = read_coco(tmp_path / "annotations" / "instances_train2017.json", tmp_path / "train2017").images
    drawn = truth_of(image, dict.fromkeys(range(20), "shape"))
    assert sorted(int(item.mask.sum()) for item in drawn if item.mask is not None) == sorted(a["area"] for a in image.objects)
    sizes = [item.box[2] * item.box[3] for item in drawn]
    assert sizes == sorted(sizes, reverse=True)


def test_non_latin_names_are_drawn() -> None:
    missing = _shape("\uffff")  # a character no font has
    for letter in "жωñאλ":
        assert not np.array_equal(_shape(letter), missing)


def _shape(letter: str) -> np.ndarray:
    return np.array(load_font(30).getmask(letter))
