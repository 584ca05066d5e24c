"""The backbone for CPUs: where it propagates, how it starts, and what it refuses. timm's contract tests run over it, too."""

import pytest
import timm
import torch

from tailprop import TailPropagation
from tailprop.backbone.cost import count_macs, count_parameters, create_on_meta
from tailprop.backbone.mixers import NoPropagation
from tests.backbone.test_fused import lite_net


def test_cost() -> None:
    model = create_on_meta("tailprop_lite")
    assert count_parameters(model) / 1e6 == pytest.approx(6.84, rel=0.01)
    assert count_macs(model) / 1e9 == pytest.approx(0.92, rel=0.01)


def test_propagation_on_small_maps_only() -> None:
    kinds = [{type(layer.mixer) for layer in stage.layers} for stage in lite_net().stages]
    assert kinds == [{NoPropagation}, {NoPropagation}, {TailPropagation}, {TailPropagation}]


def test_a_layer_starts_as_the_identity_and_learns() -> None:
    model = lite_net().train()
    layer, x = model.stages[2].layers[0], torch.randn(2, 4, 4, 32)
    assert torch.equal(layer(x), x)
    torch.nn.init.ones_(layer.norm.weight)
    layer(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())


@pytest.mark.parametrize(("h", "w"), [(32, 32), (33, 47), (64, 129)])
def test_any_size(h: int, w: int) -> None:
    model = lite_net()
    assert model(torch.randn(2, 3, h, w)).shape == (2, 5)
    features = model.forward_intermediates(torch.randn(2, 3, h, w), intermediates_only=True)
    assert [tuple(f.shape[2:]) for f in features] == [(-(-h // r), -(-w // r)) for r in (4, 8, 16, 32)]


def test_settings_of_the_paper_are_refused() -> None:
    with pytest.raises(ValueError, match="leave out post_norm and layer_scale"):
        timm.create_model("tailprop_lite", post_norm=True)


def test_another_classifier() -> None:
    model = lite_net()
    model.reset_classifier(7)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)
