"""Images at full bit depth, degradations and metrics."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import skimage.metrics
import tifffile
import torch
from PIL import Image, ImageCms
from scipy import ndimage

from tailprop.data.broken import Broken
from tailprop.data.raster import fit_channels, full_luma, read_pixels, read_profile, studio_luma, try_pixels, write_pixels
from tailprop.data.samplers import SampleKey
from tailprop.tasks.restore.config import RestoreDataConfig
from tailprop.tasks.restore.data import CropDataset, Pair
from tailprop.tasks.restore.data import WholeImageDataset as WholeImages  # or pytest would take it for a test
from tailprop.tasks.restore.degrade import add_test_noise, compress, to_unit
from tailprop.tasks.restore.inference import evaluate_restorer
from tailprop.tasks.restore.metrics import psnr, psnr_b, ssim
from tailprop.tasks.restore.task import take_one
from tests.helpers.restoring import photograph, write_images


def deep(channels: int) -> np.ndarray:
    pixels = photograph(24).astype(np.uint16) * 257 + 13
    return pixels[..., :channels] if channels <= 3 else np.concatenate([pixels, 60000 - pixels[..., :1]], axis=2)


@pytest.mark.parametrize("channels", [3, 4])
def test_16_bit_colour_keeps_its_bits(channels: int, tmp_path: Path) -> None:
    pixels = deep(channels)
    write_pixels(tmp_path / "a.png", pixels)
    assert (tmp_path / "a.png").read_bytes()[24:26] == bytes((16, {3: 2, 4: 6}[channels]))  # bits, colour type
    np.testing.assert_array_equal(read_pixels(tmp_path / "a.png"), pixels)
    tifffile.imwrite(tmp_path / "b.tif", pixels, photometric="rgb", compression="lzw")
    np.testing.assert_array_equal(read_pixels(tmp_path / "b.tif"), pixels)


def test_16_bit_planes_of_a_tiff(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.moveaxis(deep(3), -1, 0), photometric="rgb", planarconfig="separate")
    np.testing.assert_array_equal(read_pixels(tmp_path / "a.tif"), deep(3))


def test_16_bit_gray_keeps_its_bits(tmp_path: Path) -> None:
    write_pixels(tmp_path / "a.png", deep(1))
    np.testing.assert_array_equal(read_pixels(tmp_path / "a.png"), deep(1))
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "a.png")), deep(1)[..., 0])


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("LA", 2), ("RGB", 3), ("P", 3), ("RGBA", 4)])
def test_8_bit_modes(mode: str, channels: int, tmp_path: Path) -> None:
    Image.fromarray(photograph(20)).convert(mode).save(tmp_path / "a.png")
    pixels = read_pixels(tmp_path / "a.png")
    assert pixels.shape == (20, 20, channels)
    assert pixels.dtype == np.uint8
    write_pixels(tmp_path / "b.png", pixels)
    np.testing.assert_array_equal(read_pixels(tmp_path / "b.png"), pixels)


def test_palette_with_transparency(tmp_path: Path) -> None:
    Image.fromarray(photograph(20)).convert("P").save(tmp_path / "a.png", transparency=3)
    assert read_pixels(tmp_path / "a.png").shape == (20, 20, 4)


def test_non_image_is_broken(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no image")
    assert try_pixels(tmp_path / "a.png") == Broken(str(tmp_path / "a.png"), "not an image")
    tifffile.imwrite(tmp_path / "b.tif", np.zeros((4, 4), np.float32))
    broken = try_pixels(tmp_path / "b.tif")
    assert isinstance(broken, Broken)
    assert "floats" in broken.reason


def test_luma_matches_matlab() -> None:
    # rgb2ycbcr of black, white and the primaries, from MATLAB's documentation of the studio range
    colours = np.array([[[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255]]], np.uint8)
    assert studio_luma(colours)[0, :, 0].tolist() == [16, 235, 81, 145, 41]
    deep_colours = colours.astype(np.uint16) * 257
    assert np.abs(studio_luma(deep_colours) / 257 - [[[16], [235], [81.481], [144.553], [40.966]]]).max() < 0.01
    assert fit_channels(colours, 1).shape == (1, 5, 1)
    assert full_luma(colours)[0, :, 0].tolist() == [0, 255, 76, 150, 29]
    assert fit_channels(colours, 1, studio=False)[0, :, 0].tolist() == [0, 255, 76, 150, 29]
    assert fit_channels(colours[..., :1], 3).shape == (1, 5, 3)


def test_test_noise_matches_swinir() -> None:
    clean = to_unit(photograph(16))
    np.random.seed(0)  # noqa: NPY002 - as in SwinIR's code
    expected = clean[..., ::-1] + np.random.normal(0, 15 / 255, clean.shape)  # noqa: NPY002
    np.testing.assert_allclose(add_test_noise(clean, 15), expected[..., ::-1], atol=1e-7)
    assert add_test_noise(clean, 80).min() < 0  # not clipped


@pytest.mark.parametrize("channels", [1, 3])
def test_psnr_and_ssim_match_scikit_image(channels: int) -> None:
    clean = photograph(60, channels)
    degraded = compress(clean, 20)
    expected = skimage.metrics.peak_signal_noise_ratio(clean, degraded, data_range=255)
    assert psnr(degraded, clean) == pytest.approx(expected, abs=1e-9)
    expected = skimage.metrics.structural_similarity(
        clean, degraded, channel_axis=-1, data_range=255, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    assert ssim(degraded, clean) == pytest.approx(expected, abs=1e-9)
    assert psnr(clean, clean) == float("inf")


def test_ssim_matches_its_definition() -> None:
    """The definition, written out with an 11x11 window over the inner pixels."""
    clean, degraded = photograph(40, 1)[..., 0].astype(float), compress(photograph(40, 1), 20)[..., 0].astype(float)
    line = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2

    def smooth(x: np.ndarray) -> np.ndarray:
        return ndimage.correlate(x, window)[5:-5, 5:-5]

    mean_a, mean_b = smooth(clean), smooth(degraded)
    var_a, var_b = smooth(clean**2) - mean_a**2, smooth(degraded**2) - mean_b**2
    shared = smooth(clean * degraded) - mean_a * mean_b
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    each = (2 * mean_a * mean_b + c1) * (2 * shared + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    found = ssim(degraded[..., None].astype(np.uint8), clean[..., None].astype(np.uint8))
    assert found == pytest.approx(each.mean(), abs=1e-9)


def test_psnr_b_penalizes_block_edges_only() -> None:
    clean = np.full((32, 32, 1), 100, np.uint8)
    blocky = clean.copy()
    blocky[:, 8:16] += 8  # two edges on the grid of blocks
    shifted = np.roll(blocky, 3, axis=1)
    assert psnr(blocky, clean) == psnr(shifted, clean)
    assert psnr_b(shifted, clean) == psnr(shifted, clean)
    # By hand: 64 steps of 8^2 over 32 * 3 + 32 * 3 block edges, none elsewhere; log2(8) / log2(32) = 0.6
    error = 16 + 0.6 * (64 * 64 / 192)
    assert psnr_b(blocky, clean) == pytest.approx(10 * np.log10(255**2 / error), abs=1e-9)


def test_ssim_rejects_images_smaller_than_its_window() -> None:
    with pytest.raises(ValueError, match="11x11 px, the image has 10x12"):
        ssim(np.zeros((10, 12, 1), np.uint8), np.zeros((10, 12, 1), np.uint8))


@pytest.mark.parametrize("degradation", ["noise", "jpeg"])
def test_crops_are_a_function_of_the_key(degradation: str, tmp_path: Path) -> None:
    paths = sorted(write_images(tmp_path / "a").iterdir())
    crops = CropDataset(paths, RestoreDataConfig(degradation=degradation, crop_px=16), 1)
    first, again, other = (crops[key][0] for key in (SampleKey(1, 7), SampleKey(1, 7), SampleKey(1, 8)))
    assert first.degraded.shape == first.clean.shape == (1, 16, 16)
    assert torch.equal(first.degraded, again.degraded)
    assert torch.equal(first.clean, again.clean)
    assert not torch.equal(first.clean, other.clean)
    difference = (first.degraded - first.clean).abs()
    assert 0 < difference.mean() < 0.2


def test_noise_has_the_given_sigma(tmp_path: Path) -> None:
    crops = CropDataset(sorted(write_images(tmp_path / "a", side=80).iterdir()), RestoreDataConfig(sigma=25, crop_px=64), 1)
    noise = torch.cat([(p.degraded - p.clean).flatten() for p in (crops[SampleKey(0, seed)][0] for seed in range(8))])
    assert float(noise.std()) * 255 == pytest.approx(25, rel=0.02)
    assert abs(float(noise.mean())) * 255 < 0.5


@pytest.mark.parametrize(("degradation", "side"), [("noise", 5), ("jpeg", 5), ("noise", 1)])
def test_images_smaller_than_the_crop_are_mirrored(degradation: str, side: int, tmp_path: Path) -> None:
    crops = CropDataset(
        sorted(write_images(tmp_path / "a", side=side).iterdir()), RestoreDataConfig(degradation=degradation, crop_px=16), 3
    )
    assert crops[SampleKey(0, 0)][0].clean.shape == (3, 16, 16)


def test_broken_image_is_replaced_by_any_other(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "a")
    (folder / "0.png").write_text("no image")
    crops, taken = CropDataset(sorted(folder.iterdir()), RestoreDataConfig(crop_px=16), 1), set()
    for seed in range(20):
        *broken, pair = crops[SampleKey(0, seed)]
        assert broken
        assert set(broken) == {Broken(str(folder / "0.png"), "not an image")}
        assert isinstance(pair, Pair)
        taken.add(pair.name)
    assert taken == {"1.png", "2.png"}


def test_cache_is_bounded(tmp_path: Path) -> None:
    paths = sorted(write_images(tmp_path / "a", count=3, side=40).iterdir())
    crops = CropDataset(paths, RestoreDataConfig(crop_px=16, cache_gb=3500e-9), 1)  # space for two images of 1600 to 1680 bytes
    for index in range(3):
        crops[SampleKey(index, 0)]
    assert sorted(crops.kept) == paths[:2]


def test_jpeg_blocks_have_random_offsets_in_a_crop(tmp_path: Path) -> None:
    """The largest steps of the compressed crops are not always at the same columns."""
    crops = CropDataset(
        sorted(write_images(tmp_path / "a", side=80).iterdir()), RestoreDataConfig(degradation="jpeg", quality=5, crop_px=32), 1
    )
    phases = set()
    for seed in range(24):
        steps = (crops[SampleKey(0, seed)][0].degraded[0].diff(dim=1).abs() > 1e-6).float().mean(0)  # (31,)
        phases.add(max(range(8), key=lambda p: float(steps[p::8].mean())))
    assert len(phases) > 3


def scores_of_input(folder: Path, channels: int, **data: object) -> dict[str, float]:
    images = WholeImages(sorted(folder.iterdir()), RestoreDataConfig(**data), channels)
    pairs = (take_one([images[SampleKey(i, i)]]) for i in range(len(images)))
    scores = evaluate_restorer(lambda x: x, pairs, torch.device("cpu"))
    return {name: scores.mean(name) for name in ("psnr", "degraded_psnr", "ssim", "psnr_b")}


@pytest.mark.parametrize("channels", [1, 3])
def test_psnr_of_the_noisy_input_matches_sigma(channels: int, tmp_path: Path) -> None:
    scores = scores_of_input(write_images(tmp_path / "a", side=200, mode="RGB"), channels, sigma=15)
    assert scores["degraded_psnr"] == pytest.approx(20 * np.log10(255 / 15), abs=0.05)  # 24.61


def test_psnr_of_the_compressed_input_matches_pillow(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "a", side=96)
    scores = scores_of_input(folder, 1, degradation="jpeg", quality=30)
    expected = []
    for path in sorted(folder.iterdir()):
        Image.open(path).save(tmp_path / "q.jpg", quality=30)
        a, b = np.asarray(Image.open(path), float), np.asarray(Image.open(tmp_path / "q.jpg"), float)
        expected.append(10 * np.log10(255**2 / ((a - b) ** 2).mean()))
    assert scores["psnr"] == pytest.approx(np.mean(expected), abs=1e-6)
    assert scores["psnr_b"] < scores["psnr"]


@pytest.mark.parametrize(
    ("change", "message"),
    [(dict(crop_px=4), "data.crop_px"), (dict(sigma=-1), "data.sigma"), (dict(quality=0), "data.quality")],
)
def test_invalid_settings_raise(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RestoreDataConfig(**change).check()


def test_missing_folders_are_named() -> None:
    empty: list[Callable[[], object]] = [RestoreDataConfig().list_train_images, RestoreDataConfig().list_test_images]
    for ask, option in zip(empty, ("--data.train", "--data.test"), strict=True):
        with pytest.raises(ValueError, match=option):
            ask()


@pytest.mark.parametrize("degradation", ["noise", "jpeg"])
def test_gray_training_range(degradation: Literal["noise", "jpeg"], tmp_path: Path) -> None:
    for name in "ab":
        Image.new("RGB", (16, 16), "white").save(tmp_path / f"{name}.png")
    crops = CropDataset(sorted(tmp_path.iterdir()), RestoreDataConfig(degradation=degradation, crop_px=8), 1)
    whites = [
        round(255 * float(pair.clean.max())) for i in range(2) for pair in crops[SampleKey(i, i)] if isinstance(pair, Pair)
    ]
    assert whites == ([255, 255] if degradation == "noise" else [255, 235])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_16_bit_tiff_orientation(orientation: int, tmp_path: Path) -> None:
    values = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3)
    for bits, name in ((8, "a.tif"), (16, "b.tif")):
        pixels = values if bits == 8 else values.astype(np.uint16) * 257
        tifffile.imwrite(tmp_path / name, pixels, photometric="rgb", extratags=[(274, 3, 1, orientation, False)])
    shallow, deep = read_pixels(tmp_path / "a.tif"), read_pixels(tmp_path / "b.tif")
    assert deep.dtype == np.uint16
    np.testing.assert_array_equal(deep // 257, shallow)


def test_gray_tiff_with_white_as_zero(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="miniswhite")
    np.testing.assert_array_equal(read_pixels(tmp_path / "a.tif")[..., 0], 65535 - values)


def test_transparent_colour_becomes_alpha(tmp_path: Path) -> None:
    Image.fromarray(np.array([[10, 20]], dtype=np.uint8)).save(tmp_path / "gray.png", transparency=20)
    Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], dtype=np.uint8)).save(tmp_path / "rgb.png", transparency=(1, 2, 3))
    assert read_pixels(tmp_path / "gray.png").tolist() == [[[10, 255], [20, 0]]]
    assert read_pixels(tmp_path / "rgb.png").tolist() == [[[1, 2, 3, 0], [4, 5, 6, 255]]]


@pytest.mark.parametrize(("dtype", "channels"), [(np.uint8, 3), (np.uint16, 3), (np.uint16, 1), (np.uint8, 4)])
def test_colour_profiles_are_kept(dtype: Any, channels: int, tmp_path: Path) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    pixels = np.arange(5 * 7 * channels, dtype=dtype).reshape(5, 7, channels)
    write_pixels(tmp_path / "a.png", pixels, profile)
    np.testing.assert_array_equal(read_pixels(tmp_path / "a.png"), pixels)
    assert read_profile(tmp_path / "a.png") == profile
    write_pixels(tmp_path / "b.png", pixels)
    assert read_profile(tmp_path / "b.png") is None
