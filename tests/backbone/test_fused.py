"""Layers for inference: the outputs of the layers they are made from, with and without oneDNN's products."""

import copy
from typing import Any

import pytest
import torch
from timm.utils.model import reparameterize_model
from torch import Tensor, nn

from tailprop.backbone.fused import ACTIVATIONS, FusedLinear, FusedTPOLayer
from tailprop.backbone.lite import FusedLiteLayer, TailPropLite
from tailprop.runtime.onednn import OneDNNLinear, has_onednn_products, use_onednn_products
from tests.backbone.test_model import tiny_net

needs_onednn = pytest.mark.skipif(not has_onednn_products(), reason="this build of PyTorch has no such operator")
FORMS: list[dict[str, Any]] = [{}, dict(layer_scale=0.3), dict(post_norm=True, layer_scale=0.3), dict(post_norm=True)]


def disturbed(model: nn.Module) -> nn.Module:
    """A model in evaluation whose norms, biases and scales are those of no fresh model."""
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.momentum = 0.9
        model.train()(torch.randn(4, 3, 64, 64, generator=rng))
    return model.eval()


def lite_net(**kwargs: Any) -> TailPropLite:
    return TailPropLite(**(dict(depths=(1, 1, 2, 1), dims=(16, 32, 32, 64), num_classes=5, mlp_ratio=2.0) | kwargs))


@torch.no_grad()
@pytest.mark.parametrize("settings", [*FORMS, dict(mixer="heat"), dict(mixer="identity")])
def test_fused_layers_compute_the_same(settings: dict[str, Any]) -> None:
    model, x = disturbed(tiny_net(**settings)), torch.randn(2, 3, 64, 80)
    fused = reparameterize_model(model)
    assert {type(layer) for stage in fused.stages for layer in stage.layers} == {FusedTPOLayer}
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("settings", [{}, dict(mixer="heat"), dict(output_stride=16)])
def test_fused_lite_layers_compute_the_same(settings: dict[str, Any]) -> None:
    model, x = disturbed(lite_net(**settings)), torch.randn(2, 3, 64, 80)
    fused = reparameterize_model(model)
    assert {type(layer) for stage in fused.stages for layer in stage.layers} == {FusedLiteLayer}
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused.modules())
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-4)


@needs_onednn
@torch.no_grad()
@pytest.mark.parametrize("create", [tiny_net, lite_net])
def test_products_by_onednn(create: Any) -> None:
    model, x = disturbed(create()), torch.randn(2, 3, 64, 64)
    fast = reparameterize_model(model)
    assert use_onednn_products(fast) > 0
    assert not any(isinstance(m, FusedLinear) for m in fast.modules())
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(copy.deepcopy(fast)(x), fast(x))


@needs_onednn
@torch.no_grad()
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activation_and_sum_in_a_product(act: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear, x, plus = FusedLinear(torch.randn(12, 8), torch.randn(12), act), torch.randn(3, 5, 8), torch.randn(3, 5, 12)
    product = OneDNNLinear(copy.deepcopy(linear), act).to(dtype)
    close = dict(rtol=3e-2, atol=5e-2) if dtype == torch.bfloat16 else {}
    for added in (None, plus):
        found = product(x.to(dtype), None if added is None else added.to(dtype))
        torch.testing.assert_close(found.float(), linear(x, added), **close)


@needs_onednn
@torch.no_grad()
def test_packed_weights_follow_their_module() -> None:
    """A copy in the order of oneDNN is made again when the weights or their type change."""
    torch.manual_seed(0)
    first, second, x = nn.Linear(8, 12), nn.Linear(8, 12), torch.randn(3, 8)
    product = OneDNNLinear(copy.deepcopy(first))
    torch.testing.assert_close(product(x), first(x))
    product.load_state_dict(second.state_dict())
    torch.testing.assert_close(product(x), second(x))
    assert product.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(product.float()(x), second.bfloat16().float()(x))


def test_layers_with_hooks_and_adapters_stay() -> None:
    class Adapter(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    for model in (tiny_net(), lite_net()):
        layer = model.stages[0].layers[0]
        (layer.block.norm if hasattr(layer, "block") else layer.norm).register_forward_hook(lambda *_: None)
        assert layer.fuse() is layer
    adapted = tiny_net().stages[0].layers[0]
    adapted.mlp.fc2 = Adapter(64, 16)
    assert adapted.fuse() is adapted
