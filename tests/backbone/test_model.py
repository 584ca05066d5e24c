"""The backbones: cost, shapes, sizes, variants, gradients, errors."""

import copy
import pickle
from typing import Any

import pytest
import timm
import torch
from timm.optim import param_groups_weight_decay

import tailprop
from tailprop import MIXERS, TailProp, TailPropagation, tail_propagate_reference
from tailprop.backbone import layers as slicing
from tailprop.backbone.cost import count_macs, count_parameters, create_on_meta
from tailprop.backbone.registry import MODELS

ODD_SIZES = [(32, 32), (33, 47), (65, 32), (64, 129)]


def tiny_net(**kwargs: Any) -> TailProp:
    """A network with every part of the registered models that runs in milliseconds."""
    return TailProp(**(dict(depths=(1, 1, 2, 1), dims=(16, 32, 32, 64), num_classes=5, img_size=64) | kwargs))


def head_dim(mixer: str) -> dict[str, Any]:
    return dict(mixer_args=dict(head_dim=16)) if mixer == "attention" else {}


# Million parameters and GMACs at 224 px: counted from the configuration table of the paper, as the README states them.
@pytest.mark.parametrize(
    ("name", "params", "gmacs"),
    [("tailprop_tiny", 28.7, 4.56), ("tailprop_small", 48.7, 8.44), ("tailprop_base", 86.1, 14.87)],
)
def test_cost(name: str, params: float, gmacs: float) -> None:
    model = create_on_meta(name)
    assert count_parameters(model) / 1e6 == pytest.approx(params, rel=0.01)
    assert count_macs(model) / 1e9 == pytest.approx(gmacs, rel=0.01)


def test_cost_of_mixers() -> None:
    """Beyond the body, for one block of 16 channels on 8x8 positions."""
    body = dict(depths=(1,), dims=(16,), img_size=32)
    base = count_macs(tiny_net(mixer="identity", **body).eval(), 32, 32)
    values, fft_pair = (
        8 * 8 * 16,
        2 * 5 * 6 / 2 / 2,
    )  # 5 log2(64) operations a value, half for a real map, two in a MAC
    costs = {
        "conv7": values * 49,
        "conv31": values * 31**2,
        "pool": 0,
        "gfnet": values * fft_pair,
        "afno": values * fft_pair + 8 * 5 * 8 * 2 * (2 * 2) ** 2,  # frequencies, blocks, layers, a complex matrix as a real one
    }
    for mixer, expected in costs.items():
        assert count_macs(tiny_net(mixer=mixer, **body).eval(), 32, 32) - base == expected, mixer


@pytest.mark.parametrize(("h", "w"), ODD_SIZES)
@pytest.mark.parametrize("mixer", MIXERS)
def test_any_size_with_any_mixer(mixer: str, h: int, w: int) -> None:
    model = tiny_net(mixer=mixer, **head_dim(mixer)).train()
    x = torch.randn(2, 3, h, w)
    logits = model(x)
    assert logits.shape == (2, 5)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    features = model.forward_intermediates(x, intermediates_only=True)
    assert [tuple(f.shape[2:]) for f in features] == [(-(-h // r), -(-w // r)) for r in (4, 8, 16, 32)]


@pytest.mark.parametrize("mixer", [m for m in MIXERS if m not in ("heat", "wave", "gfnet")])
def test_parameters_do_not_depend_on_image_size(mixer: str) -> None:
    shapes = [[p.shape for p in tiny_net(mixer=mixer, img_size=s, **head_dim(mixer)).parameters()] for s in (64, 224)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("mixer", ["tailprop", "heat"])
@pytest.mark.parametrize("post_norm", [False, True])
def test_gradient_checkpointing_changes_nothing(mixer: str, post_norm: bool) -> None:
    model = tiny_net(mixer=mixer, post_norm=post_norm, layer_scale=1e-5 if post_norm else None).train()
    x, grads = torch.randn(2, 3, 64, 64), []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(x).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(grads[0], grads[1])


def test_post_norm_starts_near_the_identity_and_pre_norm_does_not() -> None:
    x = torch.randn(2, 8, 8, 16)
    post, pre = (tiny_net(post_norm=p, layer_scale=s).stages[0].eval() for p, s in ((True, 1e-5), (False, None)))
    assert (post(x) - x).abs().max() < 1e-3
    assert (pre(x) - x).abs().max() > 1e-3


def test_drop_path_rises_to_its_rate() -> None:
    layers = [layer for stage in tiny_net(drop_path_rate=0.4).stages for layer in stage.layers]
    rates = [layer.drop_path.rate for layer in layers]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("in_chans", [1, 4])
def test_other_inputs(in_chans: int) -> None:
    assert tiny_net(in_chans=in_chans)(torch.randn(1, in_chans, 40, 40)).shape == (1, 5)


def test_mixer_args_reach_the_operator() -> None:
    model = tiny_net(mixer_args=dict(orders=(2.0, 1.5, 0.5), scale_per_channel=True))
    mixer = model.stages[2].layers[1].block.mixer
    assert mixer.orders == (2.0, 1.5, 0.5)
    assert mixer.scales().shape == (3, 32)
    assert timm.create_model("tailprop_pico", mixer="cauchy").stages[0].layers[0].block.mixer.orders == (1.0,)


def test_no_decay_on_scales_gates_and_orders() -> None:
    model = tiny_net(mixer_args=dict(scale_per_channel=True, gate="learned", order_mode="learned"))
    _, decayed = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    names = {id(p): n for n, p in model.named_parameters()}
    kept = {names[id(p)].rsplit(".", 1)[1] for p in decayed["params"]}
    assert kept == {"weight"}
    assert set(model.no_weight_decay()) < set(names.values())


def test_features_only() -> None:
    model = timm.create_model("tailprop_pico", features_only=True, out_indices=(1, 3))
    assert model.feature_info.channels() == [64, 256]
    assert model.feature_info.reduction() == [8, 32]
    assert [tuple(f.shape) for f in model(torch.randn(2, 3, 64, 96))] == [(2, 64, 8, 12), (2, 256, 2, 3)]


def test_dtype_and_device_arguments() -> None:
    model = tiny_net(device="meta", dtype=torch.float64)
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.float64)}
    assert tiny_net(dtype=torch.float64)(torch.randn(1, 3, 32, 32, dtype=torch.float64)).dtype == torch.float64


def test_copies_and_pickles() -> None:
    model = tiny_net().eval()
    x = torch.randn(1, 3, 48, 48)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize("mixer", ["tailprop", "heat"])
def test_slices_change_nothing(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = tiny_net(mixer=mixer).eval(), torch.randn(5, 3, 64, 64)
    whole, runs = model(x), []
    run_layers = model.stages[0]._run_layers
    monkeypatch.setattr(model.stages[0], "_run_layers", lambda part: runs.append(len(part)) or run_layers(part))
    monkeypatch.setattr(slicing, "SLICE_BYTES", 20_000)
    with torch.no_grad():
        torch.testing.assert_close(model(x), whole, rtol=1e-5, atol=1e-5)
    assert len(runs) > 1
    assert sum(runs) == 5


def test_hooks_see_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slicing, "SLICE_BYTES", 20_000)
    model, seen = tiny_net().eval(), []
    model.stages[0].layers[0].block.register_forward_hook(lambda _m, _args, out: seen.append(len(out)))
    with torch.no_grad():
        model(torch.randn(5, 3, 64, 64))
    assert seen == [5]


def test_backward_hooks_see_whole_batches() -> None:
    model, seen = tiny_net(drop_path_rate=0.5).train(), []
    for module in (model.stages[0].layers[0], model.stages[0].layers[0].mlp.fc2):
        module.register_full_backward_hook(lambda _m, _grads, out: seen.append(len(out[0])))
    model(torch.randn(5, 3, 64, 64)).sum().backward()
    assert seen == [5, 5]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # inside torch.func.jvp
def test_forward_mode_derivatives() -> None:
    model, x = tiny_net().eval(), torch.randn(1, 3, 32, 32)
    value, tangent = torch.func.jvp(model, (x,), (torch.ones_like(x),))
    step = 1e-3
    difference = (model(x + step) - model(x - step)) / (2 * step)
    torch.testing.assert_close(value, model(x))
    torch.testing.assert_close(tangent, difference, rtol=5e-2, atol=1e-3)


def test_stochastic_depth_and_dropout_have_an_effect() -> None:
    x = torch.randn(8, 3, 32, 32)
    for settings in (dict(drop_path_rate=0.9), dict(drop_rate=0.9)):
        model = tiny_net(**settings).train()
        assert not torch.equal(model(x), model(x))
        assert torch.equal(model.eval()(x), model(x))


def test_final_norm_on_request() -> None:
    model, x = tiny_net().eval(), torch.randn(1, 3, 64, 64)
    (normed,) = model.forward_intermediates(x, indices=[3], norm=True, intermediates_only=True)
    torch.testing.assert_close(normed, model.forward_features(x))
    model.prune_intermediate_layers([0, 1])
    final, _ = model.forward_intermediates(x)
    assert final.shape == (1, 32, 8, 8)


def test_every_name_is_registered() -> None:
    assert set(timm.list_models(["tailprop_*", "vheat_*", "waveformer_*"])) == set(MODELS)
    assert {f"tailprop_{size}" for size in ("pico", "nano", "tiny", "small", "base")} < set(MODELS)
    assert tailprop.__version__


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(mixer="tail"), "unknown mixer 'tail'; choose one of 'tailprop'"),
        (dict(mixer_args=dict(gate="soft")), "unknown gate 'soft'"),
        (dict(mixer_args=dict(orders=(2.0, -1.0))), r"\(0, 2\], got -1.0"),
        (dict(num_classes=-1), "num_classes must be at least 1, or 0 for a model without a classifier; got -1"),
        (dict(drop_path_rate=1.5), r"drop_path_rate must be in \[0, 1\), got 1.5"),
        (dict(in_chans=0), "in_chans must be at least 1, got 0"),
        (dict(dims=(15, 32, 32, 64)), r"dims\[0\] must be even"),
        (dict(depths=(1, 1)), "one entry for each stage"),
        (dict(depths=(1, 0, 1, 1)), "each of depths must be at least 1, got 0"),
        (dict(mixer="attention", dims=(16, 24, 32, 64)), "16 channels and head_dim 32"),
        (dict(mixer="heat", img_size=16), "img_size must be at least 32, got 16"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_net(**settings)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 31, 64), "31x64 px, smaller than the 32x32"),
        ((1, 1, 64, 64), r"expected images of shape \(batch, 3, height, width\), got \(1, 1, 64, 64\)"),
        ((3, 64, 64), "expected images"),
    ],
)
def test_bad_images(shape: tuple[int, ...], message: str) -> None:
    model = tiny_net()
    with pytest.raises(ValueError, match=message):
        model(torch.zeros(shape))
    with pytest.raises(ValueError, match=message):
        model.forward_intermediates(torch.zeros(shape))


def test_bad_classifier() -> None:
    with pytest.raises(ValueError, match="got -2"):
        tiny_net().reset_classifier(-2)


@pytest.mark.parametrize("mixer", ["tailprop", "heat", "wave", "adaptive_alpha", "gfnet", "afno", "conv7", "pool", "identity"])
@pytest.mark.parametrize("output_stride", [8, 16, 32])
def test_output_stride(mixer: str, output_stride: int) -> None:
    features = timm.create_model(
        "tailprop_pico", features_only=True, output_stride=output_stride, mixer=mixer, dims=(8, 8, 8, 8), depths=(1, 1, 1, 1)
    )
    reductions = [min(r, output_stride) for r in (4, 8, 16, 32)]
    assert features.feature_info.reduction() == reductions
    shapes = [tuple(f.shape[-2:]) for f in features(torch.randn(1, 3, 64, 96))]
    assert shapes == [(64 // r, 96 // r) for r in reductions]


def test_weights_transfer_between_output_strides() -> None:
    """A smooth map at twice the resolution is propagated as far, in image pixels, as at the usual one."""
    usual, dense = TailPropagation(4, scale_init=3.0), TailPropagation(4, scale_init=3.0)
    dense.load_state_dict(usual.state_dict())
    dense.spacing = 0.5
    y, x = torch.meshgrid(torch.arange(32.0) + 0.5, torch.arange(32.0) + 0.5, indexing="ij")
    fine = (torch.cos(torch.pi * 2 * y / 32) + torch.cos(torch.pi * 3 * x / 32))[None, ..., None].expand(1, -1, -1, 4)
    coarse = (torch.cos(torch.pi * 2 * (y[::2] + 0.5) / 32) + torch.cos(torch.pi * 3 * (x + 0.5) / 32)[::2])[:, ::2]
    damped = usual(coarse[None, ..., None].expand(1, -1, -1, 4))
    torch.testing.assert_close(dense(fine)[0, :, :, 0].std() / fine[0, :, :, 0].std(), damped[0, :, :, 0].std() / coarse.std())
    reference = tail_propagate_reference(fine, dense.scales(), dense.weights(fine), spacing=0.5)
    torch.testing.assert_close(dense(fine), reference, atol=1e-5, rtol=1e-4)


def test_invalid_output_stride() -> None:
    with pytest.raises(ValueError, match="output_stride must be 8, 16 or 32, got 4"):
        timm.create_model("tailprop_pico", output_stride=4)
