"""Conversion of image inputs."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image

from tailprop.tasks.common.predictor import as_list, to_array, to_pil
from tailprop.tasks.restore.load import _to_pixels

GRAY16 = np.array([[0, 20000], [40000, 65535]], dtype=np.uint16)
GRAY8 = [[0, 78], [156, 255]]


def test_16_bits_are_scaled_not_clipped() -> None:
    for given in (Image.fromarray(GRAY16), GRAY16, torch.from_numpy(GRAY16.astype(np.float32) / 65535)):
        np.testing.assert_array_equal(np.asarray(to_pil(given, "L")), GRAY8)
    np.testing.assert_array_equal(_to_pixels(Image.fromarray(GRAY16))[..., 0], GRAY16)


def test_palette_is_converted_to_its_colours() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putdata([0, 1])
    colours = [[[255, 0, 0], [0, 255, 0]]]
    np.testing.assert_array_equal(np.asarray(to_pil(image, "RGB")), colours)
    np.testing.assert_array_equal(_to_pixels(image), colours)


@pytest.mark.parametrize("convert", [lambda x: to_pil(x, "RGB"), _to_pixels])
def test_floats_must_be_from_0_to_1(convert: Callable[[np.ndarray], object]) -> None:
    with pytest.raises(ValueError, match="a float image must have values from 0 to 1, got 0 to 255"):
        convert(np.linspace(0, 255, 12).reshape(2, 2, 3))
    with pytest.raises(ValueError, match="got int64"):
        convert(np.zeros((2, 2, 3), dtype=np.int64))


def test_a_batch_is_a_list() -> None:
    assert [is_list for _, is_list in map(as_list, ("a.png", torch.zeros(3, 4, 4), torch.zeros(2, 3, 4, 4), ["a.png"]))] == [
        False,
        False,
        True,
        True,
    ]
    with pytest.raises(ValueError, match="an image tensor must be"):
        to_array(torch.zeros(4))


@pytest.mark.parametrize("convert", [lambda x: to_pil(x, "RGB"), _to_pixels])
def test_what_is_not_an_image_is_refused(convert: Callable[[object], object]) -> None:
    with pytest.raises(ValueError, match="a float image must have values from 0 to 1, got nan to nan"):
        convert(torch.full((3, 8, 8), torch.nan))
    with pytest.raises(ValueError, match="an image has 1 to 4 channels, got 40; a tensor is \\(channels, height, width\\)"):
        convert(torch.rand(40, 50, 3))
    for nothing in (5, None):
        with pytest.raises(ValueError, match="expected a path, a PIL image, an array, a tensor or a list of them, got"):
            as_list(nothing)
