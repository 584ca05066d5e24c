"""The MLP: whole in training, sliced without gradients, compatible with adapters and functional transforms."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailprop.backbone import layers as slicing
from tailprop.backbone.layers import MLP


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mlp, x, calls = MLP(8), torch.randn(2, 5, 7, 8), []
    whole = mlp(x)
    monkeypatch.setattr(slicing, "SLICE_BYTES", 500)
    forward = mlp._forward
    monkeypatch.setattr(mlp, "_forward", lambda part: calls.append(len(part)) or forward(part))
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), whole)
    assert len(calls) > 1
    assert sum(calls) == 70
    calls.clear()
    mlp(x)
    assert calls == [2]  # with gradients it is called once, on the whole


def test_adapters_are_called() -> None:
    class Adapter(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    mlp, x = MLP(8), torch.randn(1, 2, 2, 8)
    mlp.fc2 = Adapter(32, 8)
    torch.testing.assert_close(mlp(x), F.linear(F.gelu(mlp.fc1(x)), mlp.fc2.weight, mlp.fc2.bias) + 1)
