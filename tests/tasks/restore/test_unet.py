"""The U-Net of the shipped restorers, and gray images among its training images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tailprop.backbone.operator import TailPropagation
from tailprop.data.samplers import SampleKey
from tailprop.engine.config import OptimConfig
from tailprop.engine.optim import build_optimizer
from tailprop.tasks.restore.config import RestoreDataConfig
from tailprop.tasks.restore.data import CropDataset, Pair
from tailprop.tasks.restore.model import create_restorer
from tailprop.tasks.restore.unet import TailPropUNet

SMALL = dict(dims=(8, 12, 16), blocks=1, depth=2)


def test_propagation_reaches_the_whole_image() -> None:
    """One pixel changes all of the image with the operator, and only its surroundings without."""
    reached = {}
    for mixer in ("tailprop", "identity"):
        torch.manual_seed(0)
        model = TailPropUNet(1, **SMALL, mixer=mixer, mixer_args=dict(scale_init=4.0) if mixer == "tailprop" else None).double()
        torch.nn.init.normal_(model.conv_out.weight)
        x = torch.rand(1, 1, 256, 256, dtype=torch.float64)
        moved = x.clone()
        moved[..., 0, 0] += 1
        reached[mixer] = ((model(moved) - model(x)).abs() > 0)[0, 0]
    assert reached["tailprop"].all()
    assert not reached["identity"][128:].any()
    assert not reached["identity"][:, 128:].any()


def test_operators_are_at_an_eighth_of_the_image() -> None:
    model, sizes = create_restorer("tailprop_unet", 3), []
    operators = [module for module in model.modules() if isinstance(module, TailPropagation)]
    for operator in operators:
        operator.register_forward_pre_hook(lambda _module, given: sizes.append(tuple(given[0].shape)))
    with torch.inference_mode():
        model(torch.rand(1, 3, 70, 49))
    assert sizes == [(1, 9, 7, 96)] * 4  # extended to 72 x 56
    assert sum(p.numel() for p in model.parameters()) == 823_036


def test_initial_weights_can_be_drawn_again() -> None:
    model = create_restorer("tailprop_unet", 1, **SMALL)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    model.init_weights()
    after = model.state_dict()
    assert not after["conv_out.weight"].any()
    for name, value in before.items():
        if value.numel() > 100:  # enough of them to compare their spread
            assert after[name].std() == pytest.approx(float(value.std()), rel=0.3, abs=1e-6), name


def test_muon_leaves_the_output_convolution_to_adamw() -> None:
    model = create_restorer("tailprop_unet", 3)
    groups = build_optimizer(model, OptimConfig(name="muon")).param_groups
    matrices = {id(p) for group in groups if group.get("matrices") for p in group["params"]}
    assert id(model.conv_out.weight) not in matrices
    assert id(model.fine[0].encode[0].conv1.weight) in matrices


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(mixer="heat"), "unknown mixer 'heat'"),
        (dict(dims=()), "at least one level"),
        (dict(depth=0), "depth must be at least 1"),
        (dict(mlp_ratio=0.0), "mlp_ratio"),
        (dict(upscale=2), "choose another network for super-resolution"),
        (dict(widht=3), "does not take these arguments"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_restorer("tailprop_unet", **settings)


def test_gray_images_have_equal_noise_in_all_channels(tmp_path: Path) -> None:
    """Unless no crop shall be gray: then a gray image is a colour image with equal channels, and its noise is colour."""
    values = np.random.default_rng(0).integers(0, 256, (40, 40), np.uint8)
    Image.fromarray(values).save(tmp_path / "gray.png")
    for share, equal in ((0.01, True), (0.0, False)):
        data = RestoreDataConfig(sigma=25, gray_share=share, crop_px=32)
        pair = CropDataset([tmp_path / "gray.png"], data, 3).read_example(0, SampleKey(0, 7))
        assert isinstance(pair, Pair)
        assert pair.degraded.shape == pair.clean.shape == (3, 32, 32)
        assert torch.equal(pair.clean[0], pair.clean[2])
        assert torch.equal(pair.degraded[0], pair.degraded[2]) == equal
