"""Super-resolution: MATLAB's bicubic kernel, crops, the pixel-shuffle tail, and SwinIR's protocol from recipe to image."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from skimage.color import rgb2ycbcr

import tailprop
import tailprop_cli
from tailprop.data.raster import read_pixels, write_pixels
from tailprop.tasks.restore.bicubic import crop_to_multiple, downscale, enlarge, resize, resize_matrix
from tailprop.tasks.restore.degrade import Degradation, random_crops
from tailprop.tasks.restore.inference import restore_tiled, restore_whole
from tailprop.tasks.restore.metrics import Protocol, psnr, ssim
from tailprop.tasks.restore.model import create_restorer
from tests.helpers.restoring import photograph, write_images, write_recipe
from tests.helpers.runs import assert_refused, last_row

X2 = Degradation("downscale", (0, 0), (1, 1), 2)


# Resizing


def test_weights_of_half_the_size_are_matlabs() -> None:
    """imresize(x, 0.5) weighs eight pixels by -3, -9, 29, 111, 111, 29, -9, -3 of 256; at a border they are mirrored."""
    inner = np.array([-3, -9, 29, 111, 111, 29, -9, -3]) / 256
    matrix = resize_matrix(16, 8)
    np.testing.assert_allclose(matrix[3, 3:11], inner, atol=1e-15)
    assert np.count_nonzero(np.abs(matrix[3]) > 1e-15) == 8
    mirrored = np.array([111 + 29, 111 - 9, 29 - 3, -9, -3]) / 256  # positions 0 1 2 | -1 is 0, -2 is 1, -3 is 2
    np.testing.assert_allclose(matrix[0, :5], mirrored, atol=1e-15)


def test_weights_of_twice_the_size() -> None:
    """Keys' kernel at distances 1.25, 0.25, 0.75, 1.75: closed form, a = -0.5."""
    np.testing.assert_allclose(resize_matrix(8, 16)[9, 3:7], np.array([-9, 111, 29, -3]) / 128, atol=1e-15)


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_resizing_inside_an_image_is_pillows(scale: int) -> None:
    """Pillow's bicubic has the same kernel, stretched for smaller images; at borders it is shortened instead of mirrored."""
    gray = photograph(72, 1)[:60]
    sizes = {2: (36, 30), 1 / scale: (72 // scale, 60 // scale)} | {scale: (72 * scale, 60 * scale)}
    for factor, (w, h) in sizes.items():
        ours = resize(gray, h, w)[..., 0]
        image = Image.fromarray(gray[..., 0].astype(np.float32))
        theirs = np.asarray(image.resize((w, h), Image.Resampling.BICUBIC))
        edge = max(2, round(2 * factor))
        np.testing.assert_allclose(ours[edge:-edge, edge:-edge], theirs[edge:-edge, edge:-edge], atol=1e-3)
        assert np.abs(ours - theirs).max() > 0.1  # the borders do differ


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_constants_and_slopes_survive(scale: int) -> None:
    flat = np.full((12 * scale, 12 * scale, 3), 200, np.uint8)
    np.testing.assert_array_equal(downscale(flat, scale), flat[:12, :12])
    np.testing.assert_array_equal(enlarge(flat[:12, :12], scale), flat)
    slope = np.arange(12.0 * scale)[:, None, None] * np.ones((1, 12, 1))
    expected = scale * np.arange(12) + (scale - 1) / 2  # centres of the larger pixels
    np.testing.assert_allclose(resize(slope, 12, 12)[3:-3, 0, 0], expected[3:-3])


def test_depth_is_kept_and_values_are_clipped() -> None:
    deep = np.zeros((16, 16, 1), np.uint16)
    deep[:, 8:] = 65535
    small = downscale(deep, 2)
    assert small.dtype == np.uint16
    assert (small.min(), small.max()) == (0, 65535)  # the kernel overshoots at an edge
    assert crop_to_multiple(np.zeros((9, 11, 3), np.uint8), 4).shape == (8, 8, 3)


@pytest.mark.parametrize("side", [32, 40, 64])
def test_crops_are_those_of_the_downscaled_image(side: int) -> None:
    """A crop is downscaled with its surroundings, also at the border of the image; turned and mirrored together."""
    whole = photograph(67)
    clean = crop_to_multiple(whole, 2)
    small = downscale(clean, 2)
    places = set()
    for seed in range(20):
        degraded, crop = random_crops(whole, None, side, X2, np.random.default_rng(seed))
        rng = np.random.default_rng(seed)
        top, left = (int(rng.integers((66 - side) // 2 + 1)) for _ in range(2)) if side < 66 else (0, 0)
        turns, mirrored = int(rng.integers(4)), bool(rng.integers(2))
        places.add((top, left))
        expected = [
            small[top : top + side // 2, left : left + side // 2],
            clean[2 * top : 2 * top + side, 2 * left : 2 * left + side],
        ]
        for found, part in zip((degraded, crop), expected, strict=True):
            part = np.rot90(part, turns)
            np.testing.assert_array_equal(np.round(found * 255), part[:, ::-1] if mirrored else part)
    assert len(places) > 3


def test_small_images_are_padded() -> None:
    degraded, crop = random_crops(photograph(20), None, 32, X2, np.random.default_rng(0))
    assert (degraded.shape, crop.shape) == ((16, 16, 3), (32, 32, 3))


# Network


@pytest.mark.parametrize(("name", "scale"), [("tailprop_ir_light", 2), ("swinir_light", 3), ("waveformer_ir_light", 4)])
def test_an_untrained_network_enlarges_bicubically(name: str, scale: int) -> None:
    model = create_restorer(name, 3, dim=8, depths=[1], num_heads=2, upscale=scale).eval()
    x = torch.from_numpy(photograph(23)).permute(2, 0, 1)[None, :, :17].double()
    found = model.double()(x)
    assert found.shape == (1, 3, 17 * scale, 23 * scale)
    expected = resize(photograph(23)[:17], 17 * scale, 23 * scale)
    edge = 3 * scale
    inner = found[0].permute(1, 2, 0).detach().numpy()[edge:-edge, edge:-edge]
    np.testing.assert_allclose(inner, expected[edge:-edge, edge:-edge], atol=1e-6)


def test_output_pixels_come_from_their_own_place() -> None:
    """The tail of a network without a body: the value k of a position becomes the pixel k of its square."""
    model = create_restorer("identity_ir_light", 1, dim=8, depths=[1], patch_px=1, upscale=2).eval()
    with torch.no_grad():
        model.conv_out.bias.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        found = model(torch.zeros(1, 1, 4, 4))[0, 0]
    np.testing.assert_allclose(found[:2, 2:4].numpy(), [[1, 2], [3, 4]], atol=1e-6)


@pytest.mark.parametrize(("tile", "overlap"), [(16, 4), (24, 8), (40, 0)])
def test_tiles_have_the_size_of_the_output(tile: int, overlap: int) -> None:
    class Repeat(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.interpolate(x, scale_factor=3, mode="nearest")

    x = torch.rand(1, 3, 50, 61)
    tiled = restore_tiled(Repeat(), x, tile, overlap, scale=3)
    torch.testing.assert_close(tiled, restore_whole(Repeat(), x), rtol=0, atol=1e-6)


def test_networks_and_settings_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = write_images(tmp_path / "a")
    recipe = write_recipe(tmp_path / "r.yaml", images, images)
    train = ["train", str(recipe), "--run.out", str(tmp_path / "run"), "--data.degradation", "downscale"]
    for options, message in (
        ([], "data.scale must be 2, 3, 4 for data.degradation downscale, got 1"),
        (["--data.scale", "5"], "data.scale must be 2, 3, 4"),
        (["--data.scale", "3"], "data.crop_px must be a multiple of data.scale 3, got 16"),
        (["--data.scale", "2", "--model.name", "dncnn"], "dncnn restores at the size of its input"),
        (["--data.scale", "2", "--data.degradation", "noise"], "data.scale must be 1 for data.degradation noise, got 2"),
        (["--data.scale", "2", "--data.gray-share", "0.5"], "data.gray_share is for colour networks"),
    ):
        assert_refused([*train, *options], message, capsys)


# Protocol


def test_protocol_is_luma_without_border() -> None:
    clean, other = photograph(40), photograph(48)[8:, 8:]
    part = Protocol(border_px=2, on_luma=True).part
    expected = [rgb2ycbcr(image)[2:-2, 2:-2, 0] for image in (other, clean)]
    np.testing.assert_allclose(part(clean)[..., 0], expected[1], atol=1e-2)
    wanted = 10 * np.log10(255**2 / np.mean((expected[0] - expected[1]) ** 2))
    assert psnr(part(other), part(clean)) == pytest.approx(wanted, abs=1e-3)
    gray = photograph(40, 1)
    assert part(gray).tolist() == gray[2:-2, 2:-2].tolist()  # gray is its own luma
    assert Protocol().part(clean).shape == clean.shape
    assert ssim(part(clean), part(clean)) == pytest.approx(1)


@pytest.mark.parametrize(("channels", "scale"), [(1, 2), (3, 4)])
def test_from_recipe_to_a_larger_image(channels: int, scale: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mode = "L" if channels == 1 else "RGB"
    test = write_images(tmp_path / "test", count=2, side=46, mode=mode)
    data = dict(degradation="downscale", scale=scale)
    recipe = write_recipe(
        tmp_path / "r.yaml",
        write_images(tmp_path / "train", side=50, mode=mode),
        test,
        data=data,
        model=dict(in_chans=channels),
    )
    run = tmp_path / "run"
    recipe.write_text(recipe.read_text().replace("data:", "data:\n  crop_px: 16\n  workers: 0", 1))
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run)]) == 0
    assert tailprop_cli.main(["eval", str(run), "--out", str(tmp_path / "s.json"), "--images", str(tmp_path / "drawn")]) == 0
    assert f"bicubic, x{scale} on luma without {scale} px of border" in capsys.readouterr().out.replace("\n", " ")
    scores = json.loads((tmp_path / "s.json").read_text())
    assert scores["mean"]["psnr"] == pytest.approx(last_row(run)["psnr"], abs=1e-4)
    part, expected = Protocol(scale, True).part, []
    for path in sorted(test.iterdir()):
        clean = crop_to_multiple(read_pixels(path), scale)
        expected.append(psnr(part(enlarge(downscale(clean, scale), scale)), part(clean)))
    assert scores["mean"]["degraded_psnr"] == pytest.approx(np.mean(expected), abs=1e-9)
    small = np.concatenate([downscale(photograph(48, 3), 2), np.full((24, 24, 1), 90, np.uint8)], axis=2)  # with alpha
    write_pixels(tmp_path / "small.png", small)
    options = ["--whole-px", "0", "--tile-px", "16", "--overlap-px", "4"]
    for name, extra in (("whole", []), ("tiles", options)):
        command = ["predict", str(run), str(tmp_path / "small.png"), "--out", str(tmp_path / name), *extra]
        assert tailprop_cli.main(command) == 0
    side = 24 * scale
    assert f"({side}x{side}, in tiles of 16 px)" in capsys.readouterr().out
    whole, tiles = (read_pixels(tmp_path / name / "small.png") for name in ("whole", "tiles"))
    assert whole.shape == tiles.shape == (side, side, 4)
    assert (whole[..., 3] == 90).all()
    assert psnr(whole, tiles) > 30
    np.testing.assert_array_equal(tailprop.load(run).predict(small), whole)
