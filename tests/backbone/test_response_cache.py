"""Responses that a layer keeps in evaluation: they follow every change of what they are made from."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tailprop import TailPropagation
from tailprop.backbone import response_cache
from tailprop.backbone.operator import MULTISCALE

DIM = 4


def build(**settings: object) -> TailPropagation:
    return TailPropagation(DIM, **{**dict(scale_init=1.0), **settings}).eval()


def output(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return layer(x)


def step(layer: TailPropagation) -> None:
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.5)
    layer(torch.ones(1, 6, 5, DIM).cumsum(1)).square().sum().backward()
    optimizer.step()


def edit_in_place(layer: TailPropagation) -> None:
    with torch.no_grad():
        layer.theta.add_(1)


def edit_data(layer: TailPropagation) -> None:
    layer.theta.data.mul_(2)


def load(layer: TailPropagation) -> None:
    layer.load_state_dict({name: value + 0.5 for name, value in layer.state_dict().items()})


def train_and_back(layer: TailPropagation) -> None:
    layer.train()
    edit_in_place(layer)
    layer.eval()


def replace(layer: TailPropagation) -> None:
    layer.theta = nn.Parameter(layer.theta.detach() + 1)


CHANGES = [step, edit_in_place, edit_data, load, train_and_back, replace, lambda layer: layer.double().float()]


@pytest.mark.parametrize("change", CHANGES, ids=["step", "in place", "data", "load", "train", "replace", "to"])
@pytest.mark.parametrize("settings", [dict(), dict(order_mode="learned"), MULTISCALE], ids=["paper", "orders", "multiscale"])
def test_a_change_is_seen(change: Callable[[TailPropagation], None], settings: dict[str, object]) -> None:
    layer, x = build(**settings), torch.randn(2, 6, 5, DIM)
    before = output(layer, x)
    assert len(layer._responses) == 1
    change(layer)
    with torch.enable_grad():
        expected = layer(x).detach()  # with gradients nothing is kept
    torch.testing.assert_close(output(layer, x), expected, rtol=0, atol=1e-6)
    assert change is CHANGES[-1] or (expected - before).abs().max() > 1e-4


def test_kept_terms_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = build(), torch.randn(2, 6, 5, DIM)
    first = output(layer, x)
    monkeypatch.setattr("tailprop.backbone.stable.stable_response", lambda *_: pytest.fail("the response was made again"))
    torch.testing.assert_close(output(layer, x), first, rtol=0, atol=0)
    with pytest.raises(pytest.fail.Exception):
        output(layer, x[:, :5])  # another size
    with pytest.raises(pytest.fail.Exception):
        output(layer.double(), x.double())


def test_a_bounded_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = build()
    for height in range(2, 20):
        output(layer, torch.randn(1, height, 3, DIM))
    assert len(layer._responses) == 8
    layer.train()
    assert len(layer._responses) == 0
    monkeypatch.setattr(response_cache, "_VALUES", 5)
    output(layer.eval(), torch.randn(1, 4, 3, DIM))
    assert len(layer._responses) == 0


def test_copies_and_files_hold_no_responses() -> None:
    layer, x = build(), torch.randn(1, 6, 5, DIM)
    expected = output(layer, x)
    names = set(layer.state_dict())
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert len(other._responses) == 0
        assert set(other.state_dict()) == names == set(TailPropagation(DIM).state_dict())
        torch.testing.assert_close(output(other, x), expected, rtol=0, atol=0)
        edit_in_place(other)  # an average of weights, say
        assert not torch.equal(output(other, x), output(layer, x))


def test_responses_of_inference_mode_serve_without_gradients() -> None:
    layer, x = build(), torch.randn(1, 6, 5, DIM)
    with torch.inference_mode():
        layer(x)
    expected = output(layer, x)
    layer(x.requires_grad_()).sum().backward()
    torch.testing.assert_close(layer(x).detach(), expected, rtol=0, atol=1e-6)
    assert layer.theta.grad is not None


def test_predicted_orders_are_not_kept() -> None:
    layer = build(order_mode="content")
    for _ in range(2):
        x = torch.randn(2, 6, 5, DIM)
        torch.testing.assert_close(output(layer, x), layer(x).detach(), rtol=0, atol=1e-6)
    assert len(layer._responses) == 0
