"""The lean MLP against the plain one."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailprop.mlp import MLP, gelu_linear


def plain(mlp: MLP, x: Tensor) -> Tensor:
    return mlp.fc2(F.gelu(mlp.fc1(x)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_forward_and_backward_are_plain(dtype: torch.dtype) -> None:
    mlp, x = MLP(6, dtype=dtype), torch.randn(2, 3, 5, 6, dtype=dtype, requires_grad=True)
    upstream = torch.randn(2, 3, 5, 6, dtype=dtype)
    torch.testing.assert_close(mlp(x), plain(mlp, x))
    wanted = [x, *mlp.parameters()]
    ours = torch.autograd.grad(mlp(x), wanted, upstream)
    torch.testing.assert_close(ours, torch.autograd.grad(plain(mlp, x), wanted, upstream))


def test_gradcheck_to_second_order() -> None:
    hidden, weight, bias = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 3, 4), (5, 4), (5,)))
    assert torch.autograd.gradcheck(gelu_linear, (hidden, weight, bias))
    assert torch.autograd.gradgradcheck(gelu_linear, (hidden, weight, bias))


def test_autocast() -> None:
    mlp, x, grads = MLP(8), torch.randn(2, 4, 4, 8), []
    for call in (mlp, lambda v: plain(mlp, v)):
        mlp.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = call(x)
        assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
        grads.append([p.grad for p in mlp.parameters()])
    assert all(g is not None and g.dtype == torch.float32 for g in grads[0])
    torch.testing.assert_close(grads[0], grads[1], rtol=2e-2, atol=2e-2)


def test_keeps_the_hidden_layer_once() -> None:
    mlp, x = MLP(8), torch.randn(2, 4, 4, 8, requires_grad=True)

    def kept(call: nn.Module) -> int:
        storages: dict[int, int] = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: storages.setdefault(t.data_ptr(), t.numel()) and t, lambda t: t
        ):
            call(x)
        return sum(n == 2 * 4 * 4 * 32 for n in storages.values())

    assert kept(mlp) == 1
    assert kept(lambda v: plain(mlp, v)) == 2


def test_hooks_and_adapters_are_called() -> None:
    mlp, x, seen = MLP(8), torch.randn(1, 2, 2, 8, requires_grad=True), []
    mlp.fc2.register_forward_hook(lambda *_: seen.append(1))
    mlp(x)
    assert seen == [1]

    class Adapter(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    adapted = MLP(8)
    adapted.fc2 = Adapter(32, 8)
    torch.testing.assert_close(adapted(x), plain(adapted, x))


def test_functional_transforms() -> None:
    mlp, x = MLP(4), torch.randn(3, 1, 2, 2, 4)
    parameters = dict(mlp.named_parameters())

    def loss(p: dict[str, Tensor], v: Tensor) -> Tensor:
        return torch.func.functional_call(mlp, p, v).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    loss(parameters, x.flatten(0, 1)).backward()
    torch.testing.assert_close(each["fc1.weight"].sum(0), mlp.fc1.weight.grad, rtol=1e-4, atol=1e-5)
