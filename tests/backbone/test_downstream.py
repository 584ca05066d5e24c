"""The backbones in detectors and decoders of other packages."""

from collections import OrderedDict

import pytest
import segmentation_models_pytorch as smp
import timm
import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

import tailprop  # noqa: F401 - registers the models


class PyramidBackbone(nn.Module):
    """A backbone for torchvision's detectors: a dict of maps with equal width."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.body = timm.create_model(name, features_only=True)
        self.out_channels = 64
        self.fpn = FeaturePyramidNetwork(self.body.feature_info.channels(), 64, extra_blocks=LastLevelMaxPool())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self.fpn(OrderedDict((str(i), f) for i, f in enumerate(self.body(x))))


def all_reached(module: nn.Module) -> bool:
    return all(p.grad is not None and torch.isfinite(p.grad).all() for p in module.parameters())


@pytest.mark.parametrize(("h", "w"), [(64, 64), (64, 96)])
def test_upernet(h: int, w: int) -> None:
    model = smp.UPerNet("tu-tailprop_tiny", encoder_weights=None, classes=7)
    y = model(torch.randn(2, 3, h, w))
    assert y.shape == (2, 7, h, w)
    y.square().mean().backward()
    assert all_reached(model.encoder)


def test_mask_rcnn() -> None:
    model = MaskRCNN(PyramidBackbone("tailprop_tiny"), num_classes=3, min_size=96, max_size=160)
    image = torch.rand(3, 90, 140)
    masks = torch.zeros(1, 90, 140, dtype=torch.uint8)
    masks[0, 20:60, 30:100] = 1
    target = {"boxes": torch.tensor([[30.0, 20.0, 100.0, 60.0]]), "labels": torch.tensor([1]), "masks": masks}
    losses = model.train()([image], [target])
    sum(losses.values()).backward()
    # the final norm belongs to the classifier; a pyramid uses the outputs of the stages
    assert all_reached(model.backbone.body.model.stages)
    with torch.no_grad():
        (found,) = model.eval()([image])
    assert found["masks"].shape[1:] == (1, 90, 140)


@pytest.mark.parametrize("stride", [8, 16])
def test_deeplab(stride: int) -> None:
    """It sets `output_stride` of its encoder."""
    model = smp.DeepLabV3Plus("tu-tailprop_pico", encoder_weights=None, encoder_output_stride=stride, classes=3).eval()
    assert model(torch.randn(1, 3, 64, 96)).shape == (1, 3, 64, 96)
