"""Restoration networks, tiled inference and recipes."""

import pytest
import torch

import tailprop_cli
from tailprop.engine.optim import build_schedule
from tailprop.engine.recipes import find_recipe, read_recipe
from tailprop.engine.settings import build
from tailprop.tasks.restore.config import RestoreConfig
from tailprop.tasks.restore.inference import restore_tiled, restore_whole
from tailprop.tasks.restore.model import RESTORERS, DnCNN, TailPropIR, create_restorer
from tailprop.tasks.restore.task import charbonnier

SMALL = dict(dim=8, depths=(2, 1), num_heads=2, embedding_px=8)
NETWORKS = [name for name in RESTORERS if name.endswith("_light")] + ["dncnn", "tailprop_unet"]
SMALLER = {"dncnn": dict(dim=8, depth=3), "tailprop_unet": dict(dims=(8, 12, 16), blocks=1, depth=2)}


def small(name: str, in_chans: int = 1) -> torch.nn.Module:
    return create_restorer(name, in_chans, **SMALLER.get(name, SMALL))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("shape", [(2, 1, 16, 16), (1, 3, 13, 37), (1, 1, 1, 1)])
def test_any_size_and_identity_at_initialization(name: str, shape: tuple[int, ...]) -> None:
    model, x = small(name, shape[1]).eval(), torch.rand(shape)
    torch.testing.assert_close(model(x), x)  # the identity before training
    for parameter in model.conv_out.parameters():
        torch.nn.init.normal_(parameter)
    y = model(x)
    assert y.shape == x.shape
    assert torch.isfinite(y).all()
    assert not torch.allclose(y, x)


@pytest.mark.parametrize("mixer", ["gfnet", "afno", "conv7", "pool"])
def test_mixers_of_the_backbones(mixer: str) -> None:
    model = create_restorer("tailprop_ir_light", mixer=mixer, **SMALL)
    torch.nn.init.normal_(model.conv_out.weight, std=0.1)
    assert model(torch.rand(1, 1, 13, 22)).shape == (1, 1, 13, 22)
    if mixer == "gfnet":
        assert model.groups[0].layers[0].block.mixer.map_size == (8, 8)  # embedding_px


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_has_a_gradient(name: str) -> None:
    model = small(name)
    torch.nn.init.normal_(model.conv_out.weight, std=0.1)
    charbonnier(model(torch.rand(2, 1, 24, 24)), torch.rand(2, 1, 24, 24)).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_checkpointing_changes_nothing() -> None:
    for name in ("tailprop_ir_light", "dncnn", "tailprop_unet"):
        model = small(name).eval()
        torch.nn.init.normal_(model.conv_out.weight, std=0.1)
        x = torch.rand(1, 1, 16, 16)
        plain = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        model.set_grad_checkpointing()
        again = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        for a, b in zip(plain, again, strict=True):
            torch.testing.assert_close(a, b)


def test_network_sizes_match_the_papers() -> None:
    with torch.device("meta"):
        counts = {
            name: sum(p.numel() for p in create_restorer(name).parameters()) for name in ("tailprop_ir", "swinir", "dncnn")
        }
        colour = create_restorer("dncnn", 3)
    assert counts["swinir"] == pytest.approx(11.5e6, rel=0.01)  # SwinIR's README
    assert counts["tailprop_ir"] == pytest.approx(10.6e6, rel=0.01)
    assert counts["dncnn"] == pytest.approx(556e3, rel=0.01)  # 17 layers
    assert len(colour.layers) == 18  # 20 with the first and the last
    body = TailPropIR(**{**RESTORERS["tailprop_ir"], "dim": 12})
    assert [len(group.layers) for group in body.groups] == [6] * 6


def test_restorer_parameters_do_not_depend_on_image_size() -> None:
    model = small("tailprop_ir_light").eval()
    torch.nn.init.normal_(model.conv_out.weight, std=0.1)
    for side in (16, 30, 300):
        assert model(torch.rand(1, 1, side, 20)).shape == (1, 1, side, 20)


def test_window_attention_has_swinirs_reach() -> None:
    """A change in one window reaches only the shifted windows of the second layer and the convolutions around."""
    model = TailPropIR(1, 8, (2,), "window", num_heads=2, window_px=4).eval()
    torch.nn.init.normal_(model.conv_out.weight)
    x = torch.rand(1, 1, 32, 32)
    moved = x.clone()
    moved[..., 0, 0] += 1
    reached = (model(moved) - model(x)).abs()[0, 0] > 1e-7
    # window 4, shifted by 2: up to 6; convolutions in (1), group (1), body (1) and out (1), the first before attention
    assert reached[:4, :4].all()
    assert not reached[12:].any()
    assert not reached[:, 12:].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(mixer="heet"), "unknown mixer 'heet'"),
        (dict(depths=()), "at least one group"),
        (dict(dim=10, num_heads=4, mixer="window"), "multiple of the 4 heads"),
        (dict(widht=3), "does not take these arguments"),
    ],
)
def test_invalid_networks_raise(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_restorer("tailprop_ir_light", **settings)
    with pytest.raises(ValueError, match="unknown restoration model"):
        create_restorer("tailprop_irr")


def test_charbonnier() -> None:
    assert charbonnier(torch.tensor([3.0]), torch.tensor([0.0]), 4.0).item() == pytest.approx(5.0)
    assert charbonnier(torch.zeros(2), torch.zeros(2), 1e-3).item() == pytest.approx(1e-3)


def test_tiles_of_a_local_network_match_the_whole() -> None:
    model = DnCNN(1, 4, 4).eval()
    torch.nn.init.normal_(model.conv_out.weight)
    x = torch.rand(1, 1, 70, 53)
    whole, tiled = restore_whole(model, x), restore_tiled(model, x, 32, 16)
    # pixels that one tile alone covers, further from its edge than four convolutions reach, are exact: rows and columns 0 to 7
    torch.testing.assert_close(tiled[..., :8, :8], whole[..., :8, :8], rtol=0, atol=1e-5)
    torch.testing.assert_close(restore_tiled(model, x, 128, 16), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(64, 64), (65, 33), (20, 100), (1, 40)])
@pytest.mark.parametrize(("tile", "overlap"), [(16, 0), (16, 8), (24, 5)])
def test_tiles_cover_every_pixel_once(size: tuple[int, int], tile: int, overlap: int) -> None:
    x = torch.rand(1, 1, *size)
    torch.testing.assert_close(restore_tiled(torch.nn.Identity(), x, tile, overlap), x, rtol=0, atol=1e-6)


def test_invalid_tiles_raise() -> None:
    with pytest.raises(ValueError, match="tile_px"):
        restore_tiled(torch.nn.Identity(), torch.rand(1, 1, 40, 40), 8, 0)
    with pytest.raises(ValueError, match="overlap_px"):
        restore_tiled(torch.nn.Identity(), torch.rand(1, 1, 40, 40), 32, 17)


@pytest.mark.parametrize(
    ("name", "channels", "crop", "paper"),
    [("dfwb_gray_s15", 1, 128, 33.51), ("dfwb_color_s15", 3, 128, 35.69), ("dfwb_jpeg_q40", 1, 126, 34.72)],
)
def test_dfwb_recipes_match_the_paper(name: str, channels: int, crop: int, paper: float) -> None:
    config = build(RestoreConfig, read_recipe(find_recipe(name)))
    config.check()
    assert (config.model.name, config.model.in_chans, config.paper_psnr["tailprop_ir"]) == ("tailprop_ir", channels, paper)
    assert (config.data.crop_px, config.optim.batch_size, config.optim.betas) == (crop, 1, (0.9, 0.999))
    assert config.optim.weight_decay == 0  # AdamW without decay is Adam
    schedule = build_schedule(config.optim, config.optim.epoch_steps, 1)
    assert schedule.steps == 1_600_000
    rates = [schedule.at(step) for step in (0, 799_999, 800_000, 1_200_000, 1_400_000, 1_500_000)]
    assert rates == pytest.approx([2e-4, 2e-4, 1e-4, 5e-5, 2.5e-5, 1.25e-5])


def test_swinir_subtracts_the_mean_of_colour_images() -> None:
    """An image of that mean is zero inside the network, and the first convolution returns its bias."""
    model = create_restorer("swinir_light", 3, dim=8, depths=[1], num_heads=2, window_px=4)
    seen: list[torch.Tensor] = []
    model.conv_in.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    model(torch.tensor([0.4488, 0.4371, 0.4040])[None, :, None, None].expand(1, 3, 16, 16))
    assert seen[0].abs().max() < 1e-7
    assert "mean" not in model.state_dict()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patch_px": 0}, "patch_px must be at least 1"),
        ({"window_px": 0}, "window_px must be at least 1"),
        ({"num_heads": 0}, "num_heads must be at least 1"),
        ({"embedding_px": 0}, "embedding_px must be at least 1"),
        ({"img_range": 0.0}, "img_range, the value of white inside the network, must be positive"),
        ({"mlp_ratio": 0.0}, "mlp_ratio must give the MLP at least one channel"),
    ],
)
def test_invalid_body_settings_raise(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_restorer("swinir_light", 1, **settings)


def test_num_heads_is_checked_for_window_attention_only() -> None:
    create_restorer("tailprop_ir_light", 1, dim=10, depths=[1])
    with pytest.raises(ValueError, match="multiple of the 4 heads"):
        create_restorer("swinir_light", 1, dim=10, depths=[1])


def test_tiles_are_aligned_with_patches_and_windows() -> None:
    starts: list[int] = []

    class Seen(torch.nn.Module):
        grid_px = 12

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            starts.append(int(x[0, 0, 0, 0]))
            return x

    x = torch.arange(200.0).expand(1, 1, 64, 200)  # the value of a pixel is its column
    restore_tiled(Seen(), x, 64, 16)
    assert starts[0] == 0
    assert len(starts) > 2
    assert all(start % 24 == 0 for start in starts)  # multiples of 12 and of JPEG's 8


def test_bench_restore(capsys: pytest.CaptureFixture[str]) -> None:
    from tailprop.tasks.restore import bench as bench_restore

    rows = [bench_restore.measure("tailprop_ir_light", side, 1, dict(dim=8, depths=(1,))) for side in (16, 48)]
    assert all(row.ns_per_px > 0 and row.bytes_per_px >= 0 for row in rows)
    bench_restore._print(rows, {})
    assert "48" in capsys.readouterr().out
    assert tailprop_cli.main(["bench", "restore", "--models", "tailprop_irr"]) == 2
    assert "unknown restoration model" in capsys.readouterr().err
