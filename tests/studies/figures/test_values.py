"""The numbers in the figures, against values computed in another way."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tailprop.backbone.operator import MULTISCALE, VARIANTS, TailPropagation
from tailprop.studies.figures.complexity import exponent, peak_bytes_of
from tailprop.studies.figures.diagnostics import diagnose
from tailprop.studies.figures.gate import gate_name, gate_of, high_frequency_share, responses_at, scores_of
from tailprop.studies.figures.gates import pick, widest_interval
from tailprop.studies.figures.impulse import radial_decay
from tailprop.studies.figures.kernels import cauchy_kernel, gaussian_kernel, outside
from tailprop.studies.figures.network import Metric, load_network, untrained
from tailprop.studies.figures.propagate import Layer, Mixed, closed_form, pick_layer, spread, sweep
from tailprop.studies.figures.receptive_field import area_holding, receptive_field
from tests.helpers.figures import inputs_of, perturb, write_images, write_network


def with_scales(k_g: float, k_c: float, dim: int = 4) -> TailPropagation:
    return TailPropagation(dim, scale_init=(k_g, k_c))


def layer_of(operator: TailPropagation) -> Layer:
    return Layer(operator, 1, 1, 1)


# Receptive fields


def test_receptive_field_of_a_linear_layer_is_its_kernel() -> None:
    kernel = torch.arange(1.0, 19.0).reshape(1, 2, 3, 3) - 9.5  # of two colours, with both signs at every position
    field = receptive_field(lambda x: F.conv2d(x, kernel, padding=1).permute(0, 2, 3, 1), torch.randn(2, 2, 7, 7))
    expected = F.pad(kernel[0].abs().sum(0), (2, 2, 2, 2))
    assert torch.allclose(field, expected.expand(2, 7, 7))


def test_receptive_field_sums_colours_and_sees_normed_channels() -> None:
    def normed(x: Tensor) -> Tensor:  # channels sum to 0 at every position
        y = x.mean(1, keepdim=True).expand(-1, 4, -1, -1) * torch.tensor([1.0, 2.0, 3.0, 5.0])[:, None, None] ** 2
        return F.layer_norm(y.permute(0, 2, 3, 1) + x.mean((2, 3)).mean(1)[:, None, None, None], (4,), eps=1.0)

    field = receptive_field(normed, torch.rand(1, 3, 5, 5) + 0.5)
    assert field.shape == (1, 5, 5)
    assert field[0, 2, 2] > 0
    assert int(field.argmax()) == 12


def test_area_holding() -> None:
    field = np.array([[4.0, 3.0], [2.0, 1.0]])
    assert area_holding(field, 0.4) == 25.0
    assert area_holding(field, 0.5) == 50.0
    assert area_holding(field, 0.9) == 75.0
    assert area_holding(field, 1.0) == 100.0
    assert area_holding(np.zeros((2, 2)), 0.5) == 0.0


def test_untrained_copy_has_other_weights_and_leaves_the_network_alone(tmp_path: Path) -> None:
    network = load_network(write_network(tmp_path))
    before = {name: value.clone() for name, value in network.trunk.state_dict().items()}
    first, again, other = untrained(network), untrained(network), untrained(network, seed=1)
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(first.run(x), again.run(x))
    assert not torch.allclose(first.run(x), other.run(x))
    assert not torch.allclose(first.run(x), network.run(x))
    assert all(torch.equal(value, before[name]) for name, value in network.trunk.state_dict().items())


# Gates and diagnostics


def test_scores_of_a_case_by_hand() -> None:
    """A map with two frequencies and known lambda: the formulas of Appendix G with three numbers each."""
    operator = with_scales(0.3, 0.7, dim=1)
    assert operator.gate_mlp is not None
    operator.gate_mlp.fc2.bias.data.fill_(math.log(0.25 / 0.75))  # lambda = 0.25, whatever the image
    operator.gate_mlp.fc2.weight.data.zero_()
    wave = torch.cos(math.pi * 3 * (2 * torch.arange(4.0) + 1) / 8)  # frequency 3 of 4
    x = (2.0 + wave)[None, :, None, None].expand(1, 4, 4, 1)
    scores = scores_of(operator, operator.explain(x))
    w = 3 * math.pi / 4
    h_g, h_c = math.exp(-0.3 * w**2), math.exp(-0.7 * w)
    dc, ac = 64.0, 8.0  # energies: 16 * 2^2, and 16 / 2
    mixed = 0.25 * h_g + 0.75 * h_c
    assert scores.gate.item() == pytest.approx(0.25, abs=1e-6)
    expected = (0.75 * dc + 0.75 * h_c * ac) / (dc + mixed * ac)
    assert scores.cauchy_share.item() == pytest.approx(expected, rel=1e-5)
    assert scores.high_frequency.item() == pytest.approx(ac / (dc + ac), rel=1e-5)
    ratios = []
    for m in range(4):
        for n in range(4):
            rho = (math.pi * m / 4) ** 2 + (math.pi * n / 4) ** 2
            g, c = math.exp(-0.3 * rho), math.exp(-0.7 * math.sqrt(rho))
            ratios.append(0.75 * c / (0.25 * g + 0.75 * c))
    assert scores.response_share.item() == pytest.approx(float(np.mean(ratios)), rel=1e-5)


def test_high_frequency_share_counts_from_the_radius_on() -> None:
    energy = torch.zeros(1, 8, 8, 1)
    energy[0, 6, 0] = 1.0  # radius (6/8) / sqrt 2 = 0.53
    energy[0, 5, 0] = 3.0  # 0.44
    assert high_frequency_share(energy).item() == pytest.approx(0.25)


@pytest.mark.parametrize(("variant", "expected"), [("gaussian", 1.0), ("cauchy", 0.0), ("fixed", 0.5), ("tailprop", 0.5)])
def test_gate_of_variants(variant: str, expected: float) -> None:
    operator = TailPropagation(8, **VARIANTS[variant])
    if operator.gate_mlp is not None:
        operator.gate_mlp.fc2.weight.data.zero_()
    scores = scores_of(operator, operator.explain(torch.randn(2, 6, 6, 8)))
    assert torch.allclose(scores.gate, torch.full((2,), expected, dtype=torch.float64))
    if variant in ("gaussian", "cauchy"):
        assert torch.allclose(scores.cauchy_share, torch.full((2,), 1 - expected, dtype=torch.float64))
        assert torch.allclose(scores.response_share, torch.full((2,), 1 - expected, dtype=torch.float64))


def test_gate_of_a_predicted_order_is_the_order() -> None:
    operator = TailPropagation(8, **VARIANTS["adaptive_alpha"])
    perturb(operator)
    x = torch.randn(3, 6, 6, 8)
    assert gate_name(operator) == "order \N{GREEK SMALL LETTER ALPHA}"
    orders = operator.stable_orders(x)
    assert isinstance(orders, Tensor)
    assert torch.allclose(gate_of(operator, operator.explain(x)), orders[:, 0].mean(1))


@pytest.mark.parametrize("settings", [*VARIANTS.values(), MULTISCALE, MULTISCALE | dict(length_unit="map")])
def test_responses_are_those_that_are_applied(settings: dict) -> None:
    operator = TailPropagation(8, **settings)
    perturb(operator)
    x = torch.randn(2, 8, 8, 8)
    frequencies = math.pi * torch.arange(8.0) / 8
    applied = operator.explain(x).mixed[:, :, 0].mean(-1)  # along the height
    assert torch.allclose(responses_at(operator, x, frequencies), applied, atol=1e-5)


def test_picked_images_and_interval() -> None:
    assert pick(np.array([0.3, 0.9, 0.1, 0.5, 0.4])) == (2, 4, 1)
    low, high = np.zeros(100), np.zeros(100)
    high[60:75] = -0.2
    high[20] = 0.5
    assert widest_interval(low, high) == (60, 74)


def test_diagnostics_average_operators_and_images(tmp_path: Path) -> None:
    inputs = inputs_of(write_network(tmp_path / "run"), images=write_images(tmp_path / "images"))
    network = inputs.networks[0]
    images = [sample.x for sample in inputs.samples(network)]
    together = diagnose(network, images)
    alone = [diagnose(network, [image]) for image in images]
    assert len(together) == 2
    for stage, scores in enumerate(together):
        for name, value in scores.items():
            assert value == pytest.approx(np.mean([stages[stage][name] for stages in alone]), rel=1e-4), name
    assert together[0]["gate"] != pytest.approx(together[1]["gate"], rel=1e-3)


# Impulse


@pytest.mark.parametrize("lam", [0.0, 0.25, 1.0])
def test_radial_decay_is_the_closed_form(lam: float) -> None:
    layer = layer_of(with_scales(4.0, 3.0))  # wide enough for the grid
    side = 257  # large, so that little is reflected
    response = spread(layer, Mixed("", lam, (lam, 1 - lam), (2.0, 1.0)), (side // 2, side // 2), side)
    r, decay = radial_decay(response, (side // 2, side // 2))
    near = r < 12
    assert near.sum() > 40
    assert decay[near] == pytest.approx(closed_form(layer, lam, r[near]), rel=0.03, abs=1e-6)
    assert response.sum() == pytest.approx(1.0, abs=1e-6)


def test_radial_decay_averages_equal_distances_up_to_the_border() -> None:
    response = np.zeros((5, 5))
    response[2, 2], response[1, 2], response[2, 3] = 1.0, 0.4, 0.2
    r, decay = radial_decay(response, (2, 2))
    assert r.tolist() == pytest.approx([0, 1, math.sqrt(2), 2])
    assert decay.tolist() == pytest.approx([1.0, 0.15, 0, 0])


def test_layer_with_the_longest_reach_is_picked(tmp_path: Path) -> None:
    network = load_network(write_network(tmp_path))
    first, second = network.operators[1]
    first.theta.data.fill_(-3.0)
    second.theta.data.fill_(1.0)
    assert pick_layer(network, 2).operator is second
    assert pick_layer(network, 9).name == "stage 2, layer 2 of 2"  # the last stage, if there are fewer


def test_sweep_of_each_kind_of_operator() -> None:
    def labels(**settings: object) -> list[str]:
        return [mixed.label for mixed in sweep(TailPropagation(8, **settings))]

    assert labels(**VARIANTS["tailprop"]) == [f"λ = {v}" for v in ("0", "0.25", "0.5", "0.75", "1")]
    assert labels(**VARIANTS["cauchy"]) == ["\N{GREEK SMALL LETTER ALPHA} = 1"]
    assert labels(**VARIANTS["adaptive_alpha"]) == [
        f"\N{GREEK SMALL LETTER ALPHA} = {v}" for v in ("1", "1.25", "1.5", "1.75", "2")
    ]
    three = sweep(TailPropagation(8, orders=(2.0, 1.5, 1.0)))
    assert three[1].weights == (0.25, 0.375, 0.375)


# Kernels and complexity


def test_kernels_have_the_mass_that_lies_outside() -> None:
    edges = np.linspace(0, 4000, 400_001)
    r = (edges[1:] + edges[:-1]) / 2
    for kernel, share in zip((gaussian_kernel, cauchy_kernel), outside(np.array(12.0)), strict=True):
        mass = 2 * np.pi * r * kernel(r) * 0.01
        assert mass.sum() == pytest.approx(1.0, abs=2e-3)
        assert mass[r > 12].sum() == pytest.approx(float(share), abs=2e-3)


def test_exponent() -> None:
    assert exponent([10, 100, 1000], [3e-3, 3e-1, 3e1]) == pytest.approx(2.0)


def test_peak_bytes_counts_what_lives_at_the_same_time() -> None:
    x = torch.randn(1000)

    def step() -> Tensor:
        y = x + 1  # 4 kB
        z = y * 2  # 8 kB
        del y
        w = torch.cat([z, z])  # 4 + 8 kB
        del z
        return w.view(2, -1)[0] + 1  # 8 + 4 kB

    assert peak_bytes_of(step) == 12_000
    assert peak_bytes_of(lambda: x.view(10, 100)) == 0


def test_metric_of_a_network_is_from_the_verified_log(tmp_path: Path) -> None:
    where = Path(write_network(tmp_path / "run"))
    assert load_network(str(where)).metric == Metric("top-1", 62.25, "%")
    log = where / "metrics.jsonl"
    log.write_text(log.read_text().replace("62.25", "92.25"))
    with pytest.raises(ValueError, match=r"metrics\.jsonl is corrupt: 1 line cannot be read"):
        load_network(str(where))
    log.unlink()
    assert load_network(str(where)).metric is None
