"""Stochastic depth against the usual form, x + mask * branch(x) / keep."""

import pytest
import torch
from torch import Tensor, nn

from tailprop.backbone.layers import StochasticDepth


def usual(x: Tensor, branch: nn.Module, rate: float) -> Tensor:
    mask = (torch.rand(len(x)) < 1 - rate).to(x.dtype)
    return x + mask[:, None] * branch(x) / (1 - rate)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.7, 0.999])
def test_same_as_the_usual_form_forward_and_backward(rate: float) -> None:
    branch, x = nn.Linear(3, 3).double(), torch.randn(16, 3, dtype=torch.float64, requires_grad=True)
    wanted, results = [x, *branch.parameters()], []
    for form in (lambda: StochasticDepth(rate).train()(x, branch, branch), lambda: usual(x, branch, rate)):
        torch.manual_seed(0)
        y = form()
        results.append([y, *torch.autograd.grad(y.square().sum(), wanted)])
    torch.testing.assert_close(*results)


def test_dropped_samples_are_not_computed() -> None:
    seen: list[int] = []

    def branch(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x

    StochasticDepth(0.5).train()(torch.randn(64, 2), branch, nn.Identity())
    assert 10 < seen[0] < 54
    StochasticDepth(0.5).eval()(torch.randn(64, 2), branch, nn.Identity())
    assert seen[1] == 64


def test_every_parameter_has_a_gradient_when_no_sample_is_kept() -> None:
    branch, x = nn.Linear(3, 3), torch.randn(2, 3)
    y = StochasticDepth(1 - 1e-9).train()(x, branch, branch)
    torch.testing.assert_close(y, x, rtol=0, atol=0)
    y.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in branch.parameters())


def test_autocast() -> None:
    branch, x = nn.Linear(8, 8), torch.randn(16, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y = StochasticDepth(0.5).train()(x, branch, branch)
    assert y.dtype == torch.float32
    assert y.isfinite().all()


def test_captured_graphs_keep_their_shapes() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.drop_path = nn.Linear(4, 4), StochasticDepth(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop_path(x, self.fc, self)

    y = torch.compile(Net().train(), backend="eager", fullgraph=True)(torch.randn(8, 4))
    assert y.shape == (8, 4)
