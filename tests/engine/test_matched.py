"""Matched runs: variants of a recipe see the same batches and start from the same weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tailprop.backbone.mixers import MIXERS
from tailprop.engine.config import TaskConfig
from tailprop.engine.matched import build_matched
from tailprop.engine.recipes import read_recipe
from tailprop.engine.settings import build, comparable
from tailprop.runtime.distributed import World
from tailprop.tasks import find_spec
from tests.helpers.runs import settings, train, write_recipe
from tests.helpers.tiny_tasks import TASKS, write_tiny

WORLD = World(0, 1, torch.device("cpu"))


def create(config: TaskConfig, **args: Any) -> Any:
    """The task of a recipe with other model arguments."""
    changed = replace(config, model=replace(config.model, args={**config.model.args, **args}))
    return find_spec(config.task).create(changed, WORLD)


def tensors(batch: Any) -> list[Tensor]:
    """All tensors inside a batch, in order."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, dict):
        return [t for value in batch.values() for t in tensors(value)]
    if isinstance(batch, list | tuple):
        return [t for value in batch for t in tensors(value)]
    return [t for value in vars(batch).values() for t in tensors(value)] if hasattr(batch, "__dict__") else []


def assert_shared_weights_agree(one: nn.Module, other: nn.Module) -> int:
    """The number of parameters with the same name and shape, which all agree."""
    ours, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    shared = [name for name in ours if name in theirs and ours[name].shape == theirs[name].shape]
    for name in shared:
        if not name.endswith(("theta", "gate_mlp.fc2.bias")):  # initial scales and gates are settings of the variant
            assert torch.equal(ours[name], theirs[name]), name
    return len(shared)


@pytest.mark.parametrize("name", TASKS)
def test_variants_see_the_same_batches_and_start_from_the_same_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = build(find_spec(name).config_type(), read_recipe(write_tiny(name)))
    variants = {mixer: create(config, mixer=mixer) for mixer in ("tailprop", "heat", "identity")}
    first, *others = [[tensors(batch) for batch in task.batches(1, 0)] for task in variants.values()]
    assert sum(map(len, first)) > 0
    for other in others:
        for batch, same in zip(first, other, strict=True):
            assert len(batch) == len(same)
            assert all(torch.equal(a, b) for a, b in zip(batch, same, strict=True))
    models = {mixer: build_matched(task) for mixer, task in variants.items()}
    for model in models.values():
        assert assert_shared_weights_agree(models["identity"], model) == len(list(models["identity"].parameters()))


def test_mixers_that_share_parameters_agree() -> None:
    config = build(find_spec("classify").config_type(), settings(model={"args": {"depths": [1, 1], "dims": [32, 64]}}))
    models = {mixer: build_matched(create(config, mixer=mixer)) for mixer in sorted(MIXERS)}
    for one in models.values():
        for other in models.values():
            assert_shared_weights_agree(one, other)
    heat, wave = (models[name].stages[0].freq_embed for name in ("heat", "wave"))
    assert heat.std() > 0.01
    assert torch.equal(heat, wave)
    gates = [models[name].stages[0].layers[0].block.mixer.gate_mlp.fc1.weight for name in ("tailprop", "dual_gaussian")]
    assert torch.equal(*gates)
    assert not torch.equal(gates[0], models["tailprop"].stages[1].layers[0].block.mixer.gate_mlp.fc1.weight[:4, :32])


def test_seeds_differ_and_one_seed_repeats() -> None:
    config = build(find_spec("classify").config_type(), settings())
    weights = [
        build_matched(create(replace(config, run=replace(config.run, seed=seed)))).stem.conv1.weight for seed in (0, 0, 1)
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_model_without_mixers_is_built_as_usual() -> None:
    config = build(find_spec("classify").config_type(), settings(model={"name": "resnet10t", "args": {}}))
    task = create(config)
    torch.manual_seed(config.run.seed)
    usual = task.build_model()
    assert all(torch.equal(a, b) for a, b in zip(usual.parameters(), build_matched(task).parameters(), strict=True))


def test_warm_start_keeps_the_weights_of_the_checkpoint(tmp_path: Path) -> None:
    folder = train(write_recipe(tmp_path / "recipe.yaml", optim={"epochs": 1}, run={"ema": 0.0}))
    config = build(find_spec("classify").config_type(), settings(model={"init": str(folder)}))
    task = create(config)
    loaded, matched = task.build_model().state_dict(), build_matched(task).state_dict()
    assert all(torch.equal(loaded[name], matched[name]) for name in loaded)
    plain = build_matched(create(replace(config, model=replace(config.model, init=None))))
    wide = build_matched(create(config, mixer="learnable")).state_dict()
    assert torch.equal(wide["stem.conv1.weight"], loaded["stem.conv1.weight"])
    assert not torch.equal(wide["stem.conv1.weight"], plain.stem.conv1.weight)


def test_default_is_not_compared_so_that_earlier_runs_resume() -> None:
    kind = find_spec("classify").config_type()
    assert "matched_init" not in comparable(build(kind, settings()))["run"]
    assert comparable(build(kind, settings(run={"matched_init": True})))["run"]["matched_init"] is True
