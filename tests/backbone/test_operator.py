"""The operator against its reference, its analytic properties and its documented behaviour."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tailprop import VARIANTS, TailProp, TailPropagation, dct2, idct2, stable_response, tail_propagate, tail_propagate_reference
from tailprop.backbone.operator import MULTISCALE, SCALE_OFFSET
from tailprop.backbone.stable import tail_propagate_by_place

BEYOND: dict[str, dict[str, Any]] = {
    "three orders": dict(orders=(2.0, 1.5, 0.5)),
    "three orders, learned gate": dict(orders=(2.0, 1.5, 0.5), gate="learned"),
    "learned orders": dict(orders=(2.0, 1.0), order_mode="learned"),
    "content orders": dict(orders=(2.0, 1.0), order_mode="content"),
    "scale per channel": dict(scale_per_channel=True),
    "normalized": dict(normalized_share=1.0),
    "gain on the map": dict(scale_mode="length", length_unit="map", lengths=(0.1, 0.3), learned_gain=True),
    "gain and normalized": dict(scale_mode="length", lengths=(0.5, 3.0), learned_gain=True, normalized_share=0.5),
    "lengths": dict(scale_mode="length", gate_init=1.0, lengths=(0.5, 3.0)),
    "lengths on the map": dict(scale_mode="length", length_unit="map", lengths=(0.1, 0.3)),
    "multiscale": MULTISCALE,
}
SETTINGS: dict[str, dict[str, Any]] = VARIANTS | BEYOND
MAPS = [(8, 8), (7, 12), (1, 9), (56, 40), (50,), (4, 9, 8)]  # images, a signal, a volume


def perturbed(dim: int, dtype: torch.dtype = torch.float32, **settings: Any) -> TailPropagation:
    """A module with perturbed parameters, so that every part has an effect."""
    module = TailPropagation(dim, **settings, dtype=dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return module


def reference(module: TailPropagation, x: Tensor) -> Tensor:
    weights, orders = module.weights(x), module.stable_orders(x)
    spacing = math.prod(x.shape[1:-1]) ** (-1 / (x.ndim - 2)) if module.length_unit == "map" else 1.0
    return tail_propagate_reference(x, module.scales(), weights, orders, spacing, module.normalized, module.gain(spacing))


@pytest.mark.parametrize("sides", MAPS)
@pytest.mark.parametrize("name", SETTINGS)
def test_fast_path_matches_the_reference(name: str, sides: tuple[int, ...]) -> None:
    module = perturbed(16, **SETTINGS[name])
    x = (2 * torch.rand(2, *sides, 16) - 1).requires_grad_()  # a map of magnitude 1
    fast, slow = module(x), reference(module, x)
    assert (fast - slow).abs().max() <= 1e-6 * max(1, float(slow.detach().abs().max()))  # gains make maps larger

    upstream = torch.randn_like(x) / math.sqrt(math.prod(sides))
    parameters = [x, *module.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad(fast, parameters, upstream), torch.autograd.grad(slow, parameters, upstream), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("sides", MAPS)
def test_gates_by_place_on_any_map(sides: tuple[int, ...]) -> None:
    """Weights that are the same everywhere mix like those of the other gates."""
    x, weights = torch.randn(2, *sides, 4), torch.rand(2, 1, 4)
    weights = torch.cat([weights, 1 - weights], dim=1)
    by_place = weights.unflatten(2, (*[1] * len(sides), 4)).expand(-1, -1, *sides, -1)
    expected = tail_propagate(x, (8.0, 2.0), weights)
    torch.testing.assert_close(tail_propagate_by_place(x, (8.0, 2.0), by_place), expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("settings", [dict(), MULTISCALE], ids=["paper", "multiscale"])
@pytest.mark.parametrize("sides", [(50,), (4, 9, 8)])
def test_compiled_signals_and_volumes(sides: tuple[int, ...], settings: dict[str, Any]) -> None:
    module, x = perturbed(4, **settings).eval(), torch.randn(2, *sides, 4)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    program = torch.export.export(module, (x,)).module()
    with torch.no_grad():
        for call in (compiled, program):
            torch.testing.assert_close(call(x), module(x), rtol=1e-4, atol=1e-5)
        assert module.explain(x).mixed.shape == x.shape


@pytest.mark.parametrize("name", SETTINGS)
def test_gradcheck(name: str) -> None:
    module = perturbed(3, torch.float64, **SETTINGS[name], gate_reduction=1)
    x = torch.randn(2, 3, 4, 3, dtype=torch.float64, requires_grad=True)
    parameters = tuple(module.parameters())
    names = [n for n, _ in module.named_parameters()]

    def call(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), x)

    assert torch.autograd.gradcheck(call, (x, *parameters))


@pytest.mark.parametrize("lam", [1.0, 0.0])
def test_ends_of_the_mix_are_semigroups(lam: float) -> None:
    """Propagating by a and then by b is propagating by a + b, for the Gaussian end and for the Cauchy end."""
    x, weights = torch.randn(1, 12, 9, 2, dtype=torch.float64), (lam, 1 - lam)
    twice = tail_propagate(tail_propagate(x, (0.7, 0.7), weights), (1.6, 1.6), weights)
    torch.testing.assert_close(twice, tail_propagate(x, (2.3, 2.3), weights), rtol=0, atol=1e-12)


def test_mix_is_not_a_semigroup() -> None:
    x = torch.randn(1, 12, 9, 2, dtype=torch.float64)
    twice = tail_propagate(tail_propagate(x, (0.7, 0.7)), (1.6, 1.6))
    assert (twice - tail_propagate(x, (2.3, 2.3))).abs().max() > 1e-3


@pytest.mark.parametrize("name", SETTINGS)
def test_mean_is_preserved(name: str) -> None:
    module, x = perturbed(8, **SETTINGS[name]), torch.randn(3, 11, 6, 8)
    assert (module.explain(x).mixed[:, 0, 0] == 1).all()  # exactly
    torch.testing.assert_close(module(x).mean((1, 2)), x.mean((1, 2)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("normalize", [False, True])
def test_gate_by_place_is_a_sum_of_branches(normalize: bool) -> None:
    x = torch.randn(2, 9, 7, 4, dtype=torch.float64)
    scales, orders = (3.0, 1.0, 0.5), (2.0, 1.0, 0.7)
    weights = torch.softmax(torch.randn(2, 3, 9, 7, 4, dtype=torch.float64), dim=1)
    given = x - x.mean((1, 2), keepdim=True) if normalize else x
    branches = [tail_propagate_reference(given, scales, torch.eye(3)[k].double(), orders) for k in range(3)]
    expected = weights[:, 0] * branches[0] + weights[:, 1] * branches[1] + weights[:, 2] * branches[2]
    if normalize:
        expected = expected / expected.square().mean((1, 2), keepdim=True).sqrt() + x.mean((1, 2), keepdim=True)
    normalized = torch.ones(4) if normalize else None
    torch.testing.assert_close(tail_propagate_by_place(x, scales, weights, orders, 1.0, normalized), expected)


@pytest.mark.parametrize("settings", [dict(gate="spatial"), MULTISCALE | dict(gate="spatial")])
def test_gate_by_place_that_is_the_same_everywhere_is_the_usual_operator(settings: dict[str, Any]) -> None:
    module = perturbed(8, **settings)
    x = torch.randn(2, 8, 5, 8)
    with torch.no_grad():
        module.gate_mlp.fc1.weight.zero_()
    weights = module.weights(x)
    assert weights.shape == (2, 2, 8, 5, 8)
    expected = tail_propagate(x, module.scales(), weights[:, :, 0, 0], gain=module.gain())
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)


def impulse_response(size: int, k: float, order: float) -> tuple[Tensor, Tensor]:
    """Response to an impulse in the middle of a large map, and the distance of every pixel from it."""
    x = torch.zeros(1, size, size, 1, dtype=torch.float64)
    x[0, size // 2, size // 2] = 1
    axis = torch.arange(size, dtype=torch.float64) - size // 2
    radius = torch.sqrt(axis[:, None] ** 2 + axis**2)
    return tail_propagate(x, (k,), orders=(order,))[0, ..., 0], radius


def test_impulse_is_the_gaussian_kernel() -> None:
    k = 12.0
    y, r = impulse_response(401, k, 2.0)
    expected = torch.exp(-(r**2) / (4 * k)) / (4 * math.pi * k)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)


def test_impulse_is_the_cauchy_kernel() -> None:
    """t / (2 pi (t^2 + r^2)^1.5) and its mirror images, compared away from the border, which the tail always reaches."""
    t, size = 6.0, 801
    y, r = impulse_response(size, t, 1.0)
    expected = t / (2 * math.pi * (t**2 + r**2) ** 1.5)
    near = r < 40
    torch.testing.assert_close(y[near], expected[near], rtol=5e-3, atol=1e-7)
    far = (r > 40) & (r < 80)
    torch.testing.assert_close(y[far], expected[far], rtol=5e-2, atol=0)


def test_heavy_tail_outweighs_light_tail_far_away() -> None:
    gauss, r = impulse_response(201, 4.0, 2.0)
    cauchy, _ = impulse_response(201, 4.0, 1.0)
    assert cauchy[r > 30].min() > 100 * gauss[r > 30].max()


def test_content_gate_differs_by_sample_and_channel_and_others_do_not() -> None:
    x = torch.randn(2, 5, 5, 8) * torch.tensor([1.0, 5.0])[:, None, None, None]
    content = perturbed(8).explain(x).lam
    assert content.shape == (2, 8)
    assert ((content > 0) & (content < 1)).all()
    assert content.std(0).min() > 0
    assert content.std(1).min() > 0
    learned = perturbed(8, gate="learned").explain(x).lam
    assert learned.std(0).max() == 0
    assert learned.std(1).min() > 0
    assert (perturbed(8, gate="fixed").explain(x).lam == 0.5).all()


def test_softmax_of_two_orders_is_the_papers_sigmoid() -> None:
    module, x = perturbed(8), torch.randn(3, 4, 5, 8)
    assert module.gate_mlp is not None
    expected = torch.sigmoid(module.gate_mlp(x)[:, 0])
    weights = module.weights(x)
    assert weights is not None
    torch.testing.assert_close(weights[:, 0], expected)
    torch.testing.assert_close(weights.sum(1), torch.ones(3, 8))


def test_explain_agrees_with_forward() -> None:
    module, x = perturbed(8), torch.randn(2, 6, 7, 8)
    inner = module.explain(x)
    h_g, h_c = inner.responses.unbind(1)
    lam = inner.lam[:, None, None, :]
    torch.testing.assert_close(lam * h_g + (1 - lam) * h_c, inner.mixed)
    torch.testing.assert_close(inner.coefficients, dct2(x))
    torch.testing.assert_close(idct2(inner.mixed * inner.coefficients), module(x))
    assert inner.gain is None
    rho = torch.arange(6)[:, None] ** 2 * (math.pi / 6) ** 2 + torch.arange(7) ** 2 * (math.pi / 7) ** 2
    k_g, k_c = inner.scales[:, 0]
    torch.testing.assert_close(h_g[0, ..., 0], torch.exp(-k_g * rho))
    torch.testing.assert_close(h_c[1, ..., 3], torch.exp(-k_c * rho.sqrt()))


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_explain_with_gains(share: float) -> None:
    module, x = perturbed(8, **MULTISCALE, normalized_share=share), torch.randn(2, 6, 7, 8)
    inner = module.explain(x)
    factor = inner.gain[:, None, None].expand(2, 6, 7, 8).clone()
    factor[:, 0, 0] = 1
    torch.testing.assert_close(idct2(factor * inner.mixed * inner.coefficients), module(x), rtol=1e-4, atol=1e-5)


def test_initial_lengths_are_at_most_half_of_the_map() -> None:
    assert TailPropagation(4, scale_mode="length").lengths == (0.05, 16.0)
    for side, longest in ((64, 16.0), (14, 7.0), (1, 1.0)):
        assert TailPropagation(4, scale_mode="length", map_size=(side, 100)).lengths == (0.05, longest)
    stages = TailProp(dims=(8, 8, 8, 8), depths=(1, 1, 1, 1), mixer="multiscale", img_size=224).stages
    assert [stage.layers[0].block.mixer.lengths[1] for stage in stages] == [16.0, 14.0, 7.0, 3.5]


@pytest.mark.parametrize("settings", [dict(), dict(length_unit="map", lengths=(0.05 / 48, 8 / 48))])
def test_gains_make_up_for_what_white_noise_loses(settings: dict[str, Any]) -> None:
    module = TailPropagation(32, **(MULTISCALE | dict(lengths=(0.05, 8.0)) | settings))
    x = torch.randn(4, 48, 48, 32) + 3
    with torch.no_grad():
        y = module(x)
        torch.testing.assert_close(y.mean((1, 2)), x.mean((1, 2)), rtol=0, atol=1e-4)
        assert 0.8 < y.std((1, 2)).mean(0).min() <= y.std((1, 2)).mean(0).max() < 1.4
        assert module.log_gain is not None
        module.log_gain.add_(math.log(2))
        doubled = module(x)
    mean = x.mean((1, 2), keepdim=True)
    torch.testing.assert_close(doubled - mean, 2 * (y - mean), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("by_place", [False, True])
def test_weak_channels_with_gains_survive_half_precision(dtype: torch.dtype, by_place: bool) -> None:
    """A single bright point, spread over the map: its deviations are 1e-3 of the mean."""
    x = torch.full((1, 32, 32, 2), 4.0)
    x[0, 16, 20] += 1
    propagate = tail_propagate_by_place if by_place else tail_propagate
    weights = torch.full((1, 2, 32, 32, 2) if by_place else (2,), 0.5)
    expected, found = (propagate(v, (50.0, 8.0), weights, gain=torch.full((2,), 1000.0)).float() for v in (x, x.to(dtype)))
    assert (expected - 4).abs().max() > 1
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.1)


def test_initial_lengths_are_those_of_the_kernels() -> None:
    """A Gaussian with the standard deviation of the length, a Cauchy kernel with half its width, in pixels or of the map."""
    module = TailPropagation(5, scale_mode="length", lengths=(0.5, 8.0))
    lengths = torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0])
    torch.testing.assert_close(module.scales(), torch.stack([lengths**2 / 2, lengths]))
    torch.testing.assert_close(module.learned()["length_0"], lengths)
    torch.testing.assert_close(module.learned()["length_1"], lengths)
    on_map = TailPropagation(5, scale_mode="length", length_unit="map", lengths=(0.5 / 20, 8.0 / 20))
    x = torch.randn(1, 20, 20, 5)
    torch.testing.assert_close(on_map(x), module(x), rtol=1e-4, atol=1e-5)


def test_initial_scales_and_positivity() -> None:
    module = TailPropagation(8, scale_init=(0.3, 1.7))
    torch.testing.assert_close(module.scales().flatten(), torch.tensor([0.3, 1.7]))
    with torch.no_grad():
        module.theta.fill_(-200.0)
    assert (module.scales() >= SCALE_OFFSET).all()
    dual = TailPropagation(8, **VARIANTS["dual_gaussian"])
    assert dual.scales()[0] != dual.scales()[1]
    spread = TailPropagation(8, scale_init=0.5, scale_per_channel=True).scales()
    assert spread.shape == (2, 8)
    torch.testing.assert_close(spread[0, [0, -1]], torch.tensor([0.05, 5.0]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("scale", [3e-4, 1.0, 800.0])
def test_extreme_scales_stay_finite(scale: float) -> None:
    for per_channel in (False, True):
        scales = TailPropagation(4, scale_init=scale, scale_per_channel=per_channel).scales().detach()
        assert torch.isfinite(scales).all()
        assert scales.max() == pytest.approx(10 * scale if per_channel else scale, rel=1e-3)


def test_gate_is_equation_8() -> None:
    module, x = perturbed(16), torch.randn(3, 4, 5, 16)
    assert module.gate_mlp is not None
    fc1, fc2 = module.gate_mlp.fc1, module.gate_mlp.fc2
    pooled = x.sum((1, 2)) / 20
    hidden = pooled @ fc1.weight.T + fc1.bias
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    lam = 1 / (1 + torch.exp(-(hidden @ fc2.weight.T + fc2.bias)))
    torch.testing.assert_close(module.explain(x).lam, lam)


@pytest.mark.parametrize("mode", ["learned", "content"])
def test_initial_orders(mode: str) -> None:
    module = TailPropagation(8, orders=(1.5, 0.8), order_mode=mode)
    orders = module.explain(torch.zeros(1, 4, 4, 8)).orders[0, :, 0]
    torch.testing.assert_close(orders, torch.tensor([1.5, 0.8]), rtol=1e-3, atol=0)


def test_response_is_float32_under_autocast() -> None:
    module, x = perturbed(16), torch.randn(2, 14, 14, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inner = module.explain(x.bfloat16())
        y = module(x.bfloat16())
    assert inner.mixed.dtype == inner.responses.dtype == torch.float32
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), module(x), rtol=5e-2, atol=5e-2)


def test_state_dict_has_parameters_only() -> None:
    module = TailPropagation(16)
    module(torch.randn(1, 9, 5, 16))
    assert set(module.state_dict()) == {name for name, _ in module.named_parameters()}


def test_stable_response_is_one_at_zero_with_finite_gradients() -> None:
    order = torch.tensor(1.0, requires_grad=True)
    scale = torch.tensor(2.0, requires_grad=True)
    y = stable_response(torch.tensor([0.0, 1.0]), scale, order)
    assert y[0] == 1
    y.sum().backward()
    assert order.grad is not None
    assert torch.isfinite(order.grad)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(gate="contents"), "unknown gate 'contents'; choose one of 'content', 'learned', 'fixed'"),
        (dict(order_mode="free"), "unknown order_mode 'free'"),
        (dict(orders=(2.5, 1.0)), r"a stable order must be in \(0, 2\], got 2.5"),
        (dict(orders=(0.0,)), r"a stable order must be in \(0, 2\], got 0.0"),
        (dict(orders=()), "give at least one"),
        (dict(scale_init=0.0), "scale_init must be finite and above 0.0002, got 0.0"),
        (dict(scale_init=math.nan), "got nan"),
        (dict(scale_init=(0.1, 0.2, 0.3)), "got 3 for 2 orders"),
        (dict(dim=0), "dim must be at least 1, got 0"),
        (dict(scale_mode="log"), "unknown scale_mode 'log'; choose one of 'softplus', 'length'"),
        (dict(length_unit="cm"), "unknown length_unit 'cm'"),
        (dict(learned_gain=True), "learned_gain needs lengths, so scale_mode must be 'length', got 'softplus'"),
        (dict(normalized_share=1.5), "normalized_share must be between 0 and 1, got 1.5"),
        (dict(lengths=(3.0, 1.0)), "the shorter first"),
        (dict(gate_reduction=0), "gate_reduction must be at least 1, got 0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TailPropagation(**(dict(dim=8) | settings))


def test_bad_arguments_of_the_function() -> None:
    x = torch.zeros(1, 4, 4, 2)
    with pytest.raises(ValueError, match="3 scales, 3 weights and 2 orders"):
        tail_propagate(x, (1.0, 1.0, 1.0))
    for arguments, message in (
        (dict(x=x, scales=(1.0,), orders=(3.0,)), "must be in"),
        (dict(x=x[0, 0], scales=(1.0, 1.0)), "channels-last map"),
        (dict(x=x, scales=1.0), "a value for each order"),
        (dict(x=x, scales=(-1.0, 1.0)), "not negative, got -1.0"),
        (dict(x=x, scales=(1.0, 1.0), weights=(0.5, 0.2)), "must sum to 1"),
    ):
        for function in (tail_propagate, tail_propagate_reference):
            with pytest.raises(ValueError, match=message):
                function(**arguments)
