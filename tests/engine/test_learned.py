"""Learned values: lengths and mixing weights of the propagation layers, logged after every epoch."""

import json
import math
from pathlib import Path

import pytest
import torch

from tailprop.backbone.mixers import MIXERS, build_mixer
from tailprop.backbone.operator import TailPropagation
from tailprop.engine.learned import learned_values, observe_mixers
from tests.helpers.runs import train, write_recipe


def test_lengths_are_those_of_the_kernels() -> None:
    layer = TailPropagation(8, orders=(2.0, 1.0, 1.5), scale_init=(3.0, 5.0, 2.0), gate="fixed")
    learned = {name: float(value) for name, value in layer.learned().items()}
    assert learned["length_0"] == pytest.approx(math.sqrt(2 * 3.0), rel=1e-5)
    assert learned["length_1"] == pytest.approx(5.0, rel=1e-5)
    assert learned["length_2"] == pytest.approx((1.5 * 2.0) ** (1 / 1.5), rel=1e-5)
    assert "lambda" not in learned
    by_length = TailPropagation(8, scale_mode="length", lengths=(0.5, 16.0)).learned()
    assert torch.allclose(by_length["length_0"][[0, -1]], torch.tensor([0.5, 16.0]))


@pytest.mark.parametrize("gate", ["content", "spatial"])
def test_lambda_is_the_mean_over_all_images(gate: str) -> None:
    layer = TailPropagation(8, gate=gate, gate_init=1.0).eval()
    parts = torch.randn(3, 6, 5, 8), torch.randn(1, 6, 5, 8)
    expected = layer.explain(torch.cat(parts)).lam.mean(0)
    with observe_mixers(layer):
        for part in parts:
            layer(part)
    assert torch.allclose(layer.learned()["lambda"], expected, atol=1e-6)
    low, median, high = learned_values(layer)[""]["lambda"]
    assert low < median < high
    assert "lambda" not in layer.learned()  # the observation has ended


def test_predicted_orders_are_observed() -> None:
    layer = build_mixer("adaptive_alpha", 8)
    assert "length_0" not in layer.learned()
    with observe_mixers(layer):
        layer(torch.randn(2, 4, 4, 8))
    assert torch.allclose(layer.learned()["order_0"], torch.ones(8), atol=0.1)


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_output_is_the_same_while_observed(mixer: str) -> None:
    layer = build_mixer(mixer, 32)
    x = torch.randn(2, 6, 5, 32)
    inputs = (x, torch.randn(6, 5, 32)) if layer.needs_frequency_embedding else (x,)
    expected = layer(*inputs)
    with observe_mixers(layer):
        assert torch.equal(layer(*inputs), expected)
    learned_values(layer)


def test_every_epoch_logs_what_is_learned(tmp_path: Path) -> None:
    run = train(write_recipe(tmp_path / "recipe.yaml", run={"eval_every": 2}))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, last = [row["learned"] for row in rows if row["kind"] == "epoch"]
    assert sorted(last) == ["stages.0.layers.0.block.mixer", "stages.1.layers.0.block.mixer"]
    values = last["stages.0.layers.0.block.mixer"]
    assert set(values) == {"scale_0", "scale_1", "length_0", "length_1", "lambda"}
    assert "lambda" not in first["stages.0.layers.0.block.mixer"]  # this epoch was not evaluated
    assert all(0 < low <= median <= high for low, median, high in values.values())
