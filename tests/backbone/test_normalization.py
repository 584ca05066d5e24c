"""Channels that `TailPropagation` normalizes over the map."""

import pytest
import torch

from tailprop import TailPropagation, tail_propagate
from tests.backbone.test_operator import MAPS


@pytest.mark.parametrize("sides", [*MAPS, (300, 5)])
def test_normalized_channels_keep_their_mean_and_have_variance_1(sides: tuple[int, ...]) -> None:
    x = torch.randn(2, *sides, 6, dtype=torch.float64) * torch.tensor([0.1, 0.3, 1.0, 3.0, 10.0, 100.0]) + 5
    with torch.no_grad():
        y = tail_propagate(x, (20.0, 3.0), normalized=torch.ones(6))
        plain = tail_propagate(x, (20.0, 3.0))
    axes = tuple(range(1, x.ndim - 1))
    torch.testing.assert_close(y.mean(axes), x.mean(axes), rtol=0, atol=1e-7)
    torch.testing.assert_close(y.var(axes, correction=0), torch.ones(2, 6, dtype=torch.float64), rtol=1e-3, atol=0)
    mean = plain.mean(axes, keepdim=True)
    expected = mean + (plain - mean) / plain.std(axes, correction=0, keepdim=True)
    torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-3)


def test_share_of_normalized_channels() -> None:
    x = torch.randn(2, 12, 12, 9) + 3
    for share, count in ((0.0, 0), (1 / 3, 3), (0.5, 5), (1.0, 9)):
        module = TailPropagation(9, scale_mode="length", lengths=(0.5, 3.0), normalized_share=share)
        plain = TailPropagation(9, scale_mode="length", lengths=(0.5, 3.0))
        plain.load_state_dict(module.state_dict())  # the mask is not in it
        y, unnormalized = module(x), plain(x)
        changed = (y - unnormalized).abs().amax((0, 1, 2)) > 1e-3
        assert changed.sum() == count
        torch.testing.assert_close(y[..., ~changed], unnormalized[..., ~changed])
        if count:
            torch.testing.assert_close(y[..., changed].var((1, 2), correction=0), torch.ones(2, count), rtol=1e-3, atol=0)


def test_normalization_of_constant_maps() -> None:
    """A map of one position, or of one value, has no deviations, and finite gradients."""
    for x in (torch.randn(2, 1, 1, 4), torch.full((1, 9, 7, 4), 3.0), torch.randn(1, 1, 1, 4).half()):
        x.requires_grad_()
        y = tail_propagate(x, (2.0, 1.0), normalized=torch.ones(4))
        torch.testing.assert_close(y, x, rtol=0, atol=0.05)
        y.sum().backward()
        assert x.grad is not None
        assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weak_channels_survive_half_precision(dtype: torch.dtype) -> None:
    """A single bright point, spread over the map: its deviations are 1e-3 of the mean."""
    x = torch.full((1, 32, 32, 2), 4.0)
    x[0, 16, 20] += 1
    expected = tail_propagate(x, (50.0, 8.0), normalized=torch.ones(2))
    torch.testing.assert_close(
        tail_propagate(x.to(dtype), (50.0, 8.0), normalized=torch.ones(2)).float(), expected, rtol=0.05, atol=0.1
    )
