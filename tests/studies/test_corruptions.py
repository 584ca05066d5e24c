"""Corruptions, alone and in the preprocessing of a model."""

import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data as photographs
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from tailprop.data.samplers import SampleKey
from tailprop.studies.corruptions import CORRUPTIONS, SEVERITIES, Corrupt, _chained
from tailprop.tasks.classify.augment import eval_transform
from tailprop.tasks.classify.config import AugmentConfig, DataConfig
from tailprop.tasks.classify.data import ImageDataset
from tailprop.tasks.classify.sources import Digits

SMALL = DataConfig(size_px=32, resize_px=32, workers=0)


def photograph(width: int = 64, height: int = 64) -> Image.Image:
    return Image.fromarray(photographs.astronaut()).resize((width, height), Image.Resampling.LANCZOS)


def corrupted(name: str, severity: int, image: Image.Image, seed: int = 0) -> Image.Image:
    return CORRUPTIONS[name](image, severity, np.random.default_rng(seed))


def difference(image: Image.Image, other: Image.Image) -> float:
    return float(np.mean((np.asarray(image, float) - np.asarray(other, float)) ** 2))


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("size", [(64, 64), (48, 32)])
def test_corruption_is_a_pure_function(name: str, size: tuple[int, int]) -> None:
    image = photograph(*size)
    before = image.copy()
    for severity in SEVERITIES:
        result = corrupted(name, severity, image)
        assert (result.mode, result.size) == ("RGB", size)
        assert difference(result, corrupted(name, severity, image)) == 0
        assert difference(result, image) > 10
    assert difference(image, before) == 0


RANDOM = {"gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow", "fog", "elastic_transform"}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_only_random_corruptions_depend_on_the_seed(name: str) -> None:
    image = photograph()
    changed = difference(corrupted(name, 3, image, seed=0), corrupted(name, 3, image, seed=1))
    assert (changed > 0) == (name in RANDOM)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("side", [64, 224])
def test_corruption_grows_with_severity(name: str, side: int) -> None:
    image = photograph(side, side)
    weak = 3 if name == "elastic_transform" else 1  # 1 and 2 shift the whole image, 3 to 5 deform it: not one order
    assert difference(corrupted(name, 5, image), image) > difference(corrupted(name, weak, image), image)
    if name == "elastic_transform":
        assert difference(corrupted(name, 2, image), image) > difference(corrupted(name, 1, image), image)


@pytest.mark.parametrize("name", ["defocus_blur", "motion_blur", "zoom_blur", "snow", "elastic_transform"])
def test_lengths_scale_with_the_image(name: str) -> None:
    """An image without fine detail changes about as much at 64 as at 224 px, where a fixed length would weigh 3.5 times."""
    smooth = photograph(16, 16)
    small, large = (smooth.resize((side, side), Image.Resampling.BICUBIC) for side in (64, 224))
    ratios = [
        difference(corrupted(name, 5, small, s), small) / difference(corrupted(name, 5, large, s), large) for s in range(4)
    ]
    assert 0.6 < np.mean(ratios) < 1.6


def test_corruptions_by_their_definition() -> None:
    """Properties of the result that follow from the definition."""
    grey = Image.new("RGB", (64, 64), (128, 128, 128))
    noise = np.asarray(corrupted("gaussian_noise", 1, grey), float) / 255
    assert noise.std() == pytest.approx(0.08, rel=0.05)
    counts = np.asarray(corrupted("shot_noise", 1, grey), float) / 255 * 60  # of photons: the variance is the mean
    assert counts.var() == pytest.approx(counts.mean(), rel=0.1)
    impulses = np.asarray(corrupted("impulse_noise", 5, grey))
    assert (impulses != 128).mean() == pytest.approx(0.27, rel=0.1)
    assert set(np.unique(impulses)) == {0, 128, 255}
    assert np.asarray(corrupted("brightness", 1, grey)).mean() == round(255 * (128 / 255 + 0.1))
    for name in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "contrast", "elastic_transform", "pixelate"):
        assert difference(corrupted(name, 5, grey), grey) == 0, name  # a uniform image does not change


def test_blur_of_a_point() -> None:
    """A disk is round and has its radius; motion blur goes to one side only, close to the horizontal."""
    point = np.zeros((224, 224, 3), np.uint8)
    point[112, 112] = 255
    wide = Image.fromarray(np.repeat(np.repeat(point[96:128, 96:128], 7, 0), 7, 1))  # 7x7, bright enough to be seen blurred
    spread = np.argwhere(np.asarray(corrupted("defocus_blur", 5, wide))[..., 0] > 0)
    assert np.ptp(spread, axis=0) == pytest.approx(2 * 10 + 6, abs=2)
    y, x = np.argwhere(np.asarray(corrupted("motion_blur", 5, wide))[..., 0] > 0).T
    assert np.ptp(x) >= 2 * 20 * 0.7
    assert np.ptp(y) <= 2 * 20 * 0.75 + 7


@pytest.mark.parametrize("reach", [1, 4])
def test_glass_blur_matches_the_published_loop(reach: int) -> None:
    """The vectorized chains against the published loop over pixels."""
    height, width = 32, 48
    shift = np.random.default_rng(0).integers(-reach, reach, (2, height, width))
    pixels = np.arange(height * width).reshape(height, width)
    y, x = np.indices(pixels.shape) + _chained(shift, reach)
    at_once, one_by_one = pixels[y, x], pixels.copy()
    for row in range(height - reach, reach, -1):
        for column in range(width - reach, reach, -1):
            one_by_one[row, column] = one_by_one[row + shift[0, row, column], column + shift[1, row, column]]
    assert np.array_equal(at_once, one_by_one)


def test_jpeg_matches_pillow() -> None:
    image, file = photograph(), io.BytesIO()
    image.save(file, "JPEG", quality=7)
    assert difference(corrupted("jpeg_compression", 5, image), Image.open(file)) == 0


def prepared(image: Image.Image, name: str, in_chans: int = 3, seed: int = 0) -> Tensor:
    torch.manual_seed(0)
    return Corrupt(name, 3, seed, eval_transform(SMALL, AugmentConfig(), in_chans))(image)


def test_corruption_is_between_crop_and_normalisation() -> None:
    image = photograph(80, 40)
    cropped = image.resize((64, 32), Image.Resampling.BICUBIC).crop((16, 0, 48, 32))
    expected = np.asarray(corrupted("contrast", 3, cropped), np.float32) / 255
    expected = (expected - np.array(IMAGENET_DEFAULT_MEAN)) / np.array(IMAGENET_DEFAULT_STD)
    torch.testing.assert_close(prepared(image, "contrast"), torch.tensor(expected).permute(2, 0, 1).float())


def test_corrupt_keeps_the_channels() -> None:
    assert prepared(photograph().convert("L"), "snow", 1).shape == (1, 32, 32)
    half = photograph(32, 32).convert("RGBA")
    half.putalpha(128)
    assert prepared(half, "fog", 4)[3].unique().item() == pytest.approx(2 * 128 / 255 - 1, abs=1e-6)


def test_corrupt_depends_on_seed_and_image_only() -> None:
    transform = Corrupt("gaussian_noise", 3, 0, eval_transform(SMALL, AugmentConfig()))
    images = ImageDataset(Digits("validation"), [transform], "RGB")
    copy = ImageDataset(Digits("validation"), [pickle.loads(pickle.dumps(transform))], "RGB")
    first = images[SampleKey(3, 3)][0][0]
    assert not torch.equal(first, images[SampleKey(3, 4)][0][0])
    assert torch.equal(first, images[SampleKey(3, 3)][0][0])
    assert torch.equal(first, copy[SampleKey(3, 3)][0][0])
    assert not torch.equal(*(prepared(photograph(), "shot_noise", seed=seed) for seed in (0, 1)))


@pytest.mark.parametrize("severity", [0, 6])
def test_severity_is_checked_everywhere(severity: int) -> None:
    with pytest.raises(ValueError, match=f"got {severity}"):
        corrupted("fog", severity, photograph())
    with pytest.raises(ValueError, match=f"got {severity}"):
        Corrupt("fog", severity, 0, eval_transform(SMALL, AugmentConfig()))
