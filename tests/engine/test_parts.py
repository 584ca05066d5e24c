"""Freezing, layer decay and the learning rate of the head."""

from typing import Any

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import nn

import tailprop  # noqa: F401 - registers the models
from tailprop.engine.config import ModelConfig, OptimConfig, RunConfig
from tailprop.engine.optim import build_optimizer
from tailprop.engine.parts import freeze, head_parameters
from tailprop.engine.train_state import TrainState
from tailprop.runtime.distributed import World
from tailprop.tasks.detect.config import DetectorConfig
from tailprop.tasks.detect.model import create_detector
from tailprop.tasks.reach.model import ReachNet
from tailprop.tasks.restore.model import create_restorer
from tailprop.tasks.segment.config import SegmenterConfig
from tailprop.tasks.segment.model import create_segmenter

NARROW = ModelConfig("tailprop_pico", args=dict(depths=[1, 1, 2, 1], dims=[8, 16, 24, 32]))
ALONE = World(0, 1, torch.device("cpu"))


def classifier(**settings: Any) -> nn.Module:
    return timm.create_model("tailprop_pico", num_classes=5, **NARROW.args, **settings)


def detector() -> nn.Module:
    small = DetectorConfig(channels=16, box_width=32, mask_layers=1, anchor_px=(8, 16, 32, 64, 128))
    return create_detector(NARROW, 3, 64, 64, small)[0]


def segmenter() -> nn.Module:
    return create_segmenter(NARROW, 4, SegmenterConfig(channels=16, aux_channels=8))[0]


def restorer() -> nn.Module:
    return create_restorer("tailprop_ir_light", dim=16, depths=(2, 1))


MODELS = {
    "classifier": (classifier, "", {"head.fc"}),
    "detector": (detector, "backbone.body.model.", {"backbone.norms", "backbone.fpn", "rpn.head", "roi_heads.box_head"}),
    "segmenter": (segmenter, "backbone.model.", {"norms", "decoder", "head", "aux"}),
    "restorer": (restorer, "", {"conv_out"}),
    "unet": (lambda: create_restorer("tailprop_unet", dims=(8, 16), blocks=1, depth=1), "", {"conv_out"}),
    "dncnn": (lambda: create_restorer("dncnn"), "", {"conv_out"}),
    "reach": (lambda: ReachNet(3, 4, dim=8, depth=3), "", {"head"}),
}


def trained(model: nn.Module) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("name", MODELS)
def test_the_backbone_is_everything_before_the_head(name: str) -> None:
    build, prefix, heads = MODELS[name]
    model = build()
    freeze(model, ["backbone"])
    left = trained(model)
    assert all(any(part.startswith(head) for part in left) for head in heads)
    if prefix:
        assert not any(part.startswith(prefix) for part in left)
    else:
        assert all(part.startswith(tuple(heads)) for part in left)


def test_frozen_modules_are_named_as_in_the_backbone() -> None:
    for build, prefix in ((classifier, ""), (detector, "backbone.body.model."), (segmenter, "backbone.model.")):
        model = build()
        before = trained(model)
        freeze(model, ["stem", "stages.0"])
        frozen = (f"{prefix}stem.", f"{prefix}stages.0.")
        assert trained(model) == {name for name in before if not name.startswith(frozen)}
    model = detector()
    freeze(model, ["roi_heads.box_head"])
    assert not any("box_head" in name for name in trained(model))


def test_unknown_modules_are_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no module 'stages\.9' with parameters; did you mean stages\.\d\?"):
        freeze(classifier(), ["stages.9"])
    with pytest.raises(ValueError, match=r"the largest are backbone, stem, stem\.conv1"):
        freeze(classifier(), ["qqqq"])
    with pytest.raises(ValueError, match=r"model\.freeze backbone head leaves nothing to train"):
        freeze(classifier(), ["backbone", "head"])


def test_frozen_modules_stay_in_evaluation_mode() -> None:
    """A frozen batch norm keeps its statistics through training steps, and frozen layers drop no paths; weights stay, too."""
    model = timm.create_model("test_resnet", num_classes=4, drop_path_rate=0.5)
    state = TrainState(model, OptimConfig(lr=0.1, weight_decay=0.5), RunConfig(ema=0.5), ALONE, ["bn1", "conv1", "layer1"])
    before = {name: value.clone() for name, value in state.model.state_dict().items()}

    class Task:
        def loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return model(batch).square().mean()

    for number in range(2):
        state.set_training_mode()
        state.step(Task(), [torch.randn(4, 3, 32, 32)], 0.1, number + 1)
    assert state.ema is not None
    for found in (state.model.state_dict(), state.ema.module.state_dict()):
        frozen = {name for name in before if name.startswith(("bn1", "conv1", "layer1"))}
        assert all(torch.equal(found[name], before[name]) for name in frozen)
        assert not torch.equal(found["fc.weight"], before["fc.weight"])
        assert not torch.equal(found["layer2.0.bn1.running_mean"], before["layer2.0.bn1.running_mean"])
    modes = {name: module.training for name, module in state.model.named_modules()}
    assert not any(mode for name, mode in modes.items() if name.startswith(("bn1", "layer1")))
    assert modes["layer2"]


def scales(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, float]:
    by_id = {id(p): group.get("lr_scale", 1.0) for group in optimizer.param_groups for p in group["params"]}
    return {name: by_id[id(p)] for name, p in model.named_parameters() if id(p) in by_id}


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_layer_decay_is_that_of_timm(name: Any) -> None:
    model = classifier()
    found = scales(build_optimizer(model, OptimConfig(name=name, layer_decay=0.7, muon_lr_scale=1.0)), model)
    theirs = param_groups_layer_decay(model, layer_decay=0.7)
    wanted = {id(p): group["lr_scale"] for group in theirs for p in group["params"]}
    assert found == {n: pytest.approx(wanted[id(p)]) for n, p in model.named_parameters()}
    assert found["head.fc.weight"] == 1.0
    assert found["norm.weight"] == pytest.approx(0.7)
    assert found["stem.conv1.weight"] == pytest.approx(0.7**6)  # five layers lie between


def test_every_parameter_is_in_one_group() -> None:
    for name, (build, *_) in MODELS.items():
        model = build()
        if name == "unet":  # its levels are no chain
            with pytest.raises(ValueError, match="does not say what its layers are"):
                build_optimizer(model, OptimConfig(layer_decay=0.5))
            continue
        optimizer = build_optimizer(model, OptimConfig(name="muon", layer_decay=0.5, head_lr=3.0, scale_lr=2.0))
        taken = [id(p) for group in optimizer.param_groups for p in group["params"]]
        assert sorted(taken) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize("build", [detector, segmenter])
def test_layer_decay_in_a_larger_network_starts_below_its_head(build: Any) -> None:
    model = build()
    found = scales(build_optimizer(model, OptimConfig(layer_decay=0.5, head_lr=10.0)), model)
    prefix = "backbone.body.model." if build is detector else "backbone.model."
    assert found[f"{prefix}stages.3.layers.0.norm1.weight"] == 0.5
    assert found[f"{prefix}stages.2.layers.1.norm1.weight"] == 0.25
    assert found[f"{prefix}stem.conv1.weight"] == 0.5**6
    heads = {name: scale for name, scale in found.items() if not name.startswith(prefix)}
    assert set(heads.values()) == {10.0}


def test_layer_decay_of_restorers() -> None:
    model = restorer()
    found = scales(build_optimizer(model, OptimConfig(layer_decay=0.5)), model)
    assert found["conv_out.weight"] == 1.0
    assert found["groups.1.layers.0.norm1.weight"] == found["groups.1.conv.weight"] == found["conv_body.weight"] == 0.5
    assert found["groups.0.conv.weight"] == found["groups.0.layers.1.norm1.weight"] == 0.25
    assert found["groups.0.layers.0.norm1.weight"] == 0.125
    assert found["conv_in.weight"] == 0.0625


def test_head_lr_multiplies_other_factors() -> None:
    model = classifier()
    found = scales(build_optimizer(model, OptimConfig(head_lr=10.0, scale_lr=3.0)), model)
    assert {name for name, scale in found.items() if scale == 10.0} == {"head.fc.weight", "head.fc.bias"}
    assert head_parameters(model) == {id(model.head.fc.weight), id(model.head.fc.bias)}
    assert any(scale == 3.0 for name, scale in found.items() if "mixer" in name)


def test_without_them_the_groups_are_as_before() -> None:
    groups = build_optimizer(classifier(), OptimConfig(name="muon", scale_lr=2.0)).param_groups
    assert [group["lr_scale"] for group in groups] == [1.0, 1.0, 2.0, 4.0]


def test_settings_are_checked() -> None:
    for value in (0.0, 1.1, -1.0):
        with pytest.raises(ValueError, match=r"optim.layer_decay must be in \(0, 1\]"):
            OptimConfig(layer_decay=value).check()
    with pytest.raises(ValueError, match=r"optim.head_lr must be finite and at least 0"):
        OptimConfig(head_lr=-1).check()

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

    with pytest.raises(ValueError, match="does not say what its layers are"):
        build_optimizer(Plain(), OptimConfig(layer_decay=0.5))
