"""The CSV of every figure, against values computed from the checkpoint in another way: NumPy and SciPy, in float64."""

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.fft
import torch
import torch.nn.functional as F
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle
from PIL import Image
from safetensors.torch import load_file, save_file

from tailprop.backbone.operator import TailPropagation
from tailprop.studies.figures import complexity, diagnostics, gates, impulse, kernels, receptive_field, sources
from tailprop.studies.figures.inputs import Picture
from tailprop.studies.figures.network import Network, load_network
from tailprop.studies.figures.prepare import preparation
from tailprop.studies.figures.receptive_field import beyond
from tailprop.tasks.restore.config import RestoreDataConfig
from tests.helpers.figures import inputs_of, nothing, write_images, write_network

SIDE = 65


def edit(run: str, change: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    path = Path(run) / "model.safetensors"
    save_file({name: change(name, value).clone() for name, value in load_file(path).items()}, path)


def wide(run: str, k_g: float, k_c: float) -> None:
    """Give every operator of a run these scales."""
    theta = torch.log(torch.expm1(torch.tensor([[k_g], [k_c]], dtype=torch.float64) - 1e-4)).float()
    edit(run, lambda name, value: theta if name.endswith("theta") else value)


def only(pictures: list[Picture]) -> Picture:
    (picture,) = pictures
    return picture


def inputs_of_operators(network: Network, images: torch.Tensor) -> list[list[tuple[TailPropagation, np.ndarray]]]:
    """Every operator of each stage with its input, (B, H, W, C)."""
    found: list[list[tuple[TailPropagation, np.ndarray]]] = [[] for _ in network.operators]
    network.visit(images, lambda stage, _, operator, x: found[stage].append((operator, x.double().numpy())))
    return found


def gate_by_hand(operator: TailPropagation, x: np.ndarray) -> np.ndarray:
    """lambda = sigmoid(MLP(GAP(X))), (B, C)."""
    assert operator.gate_mlp is not None
    fc1, fc2 = operator.gate_mlp.fc1.double(), operator.gate_mlp.fc2.double()
    hidden = F.gelu(fc1(torch.from_numpy(x.mean((1, 2)))))
    values = torch.sigmoid(fc2(hidden)).detach().numpy()
    operator.gate_mlp.float()
    return values


def scales_by_hand(operator: TailPropagation) -> tuple[float, float]:
    k_g, k_c = (math.log1p(math.exp(float(theta))) + 1e-4 for theta in operator.theta.detach())
    return k_g, k_c


def scores_by_hand(operator: TailPropagation, x: np.ndarray) -> dict[str, np.ndarray]:
    """Appendix G of the paper, written out."""
    _, h, w, _ = x.shape
    energy = scipy.fft.dctn(x, axes=(1, 2), norm="ortho") ** 2
    root = np.hypot(*np.meshgrid(np.pi * np.arange(h) / h, np.pi * np.arange(w) / w, indexing="ij"))[None, :, :, None]
    k_g, k_c = scales_by_hand(operator)
    lam = gate_by_hand(operator, x)[:, None, None, :]
    cauchy = (1 - lam) * np.exp(-k_c * root)
    mixed = lam * np.exp(-k_g * root**2) + cauchy
    axes = (1, 2, 3)
    return {
        "gate": lam.mean(axes),
        "cauchy_share": (cauchy * energy).sum(axes) / (mixed * energy).sum(axes),
        "response_share": (cauchy / mixed).mean(axes),
        "high_frequency": (energy * (root >= math.sqrt(2) * math.pi / 2)).sum(axes) / energy.sum(axes),
    }


def test_diagnostics_of_three_seeds(tmp_path: Path) -> None:
    runs = [write_network(tmp_path / f"seed{seed}", seed=seed) for seed in range(3)]
    for run in runs:
        wide(run, 0.4, 0.7)
    inputs = inputs_of(*runs, images=write_images(tmp_path / "images", 4), count=4)
    picture = only(diagnostics.draw(inputs, nothing))
    assert [(row["checkpoint"], row["stage"]) for row in picture.rows] == [(run, stage) for run in runs for stage in (1, 2)]
    images = torch.stack([sample.x for sample in inputs.samples(inputs.networks[0])])
    for network in inputs.networks:
        rows = [row for row in picture.rows if row["checkpoint"] == network.path]
        for row, operators in zip(rows, inputs_of_operators(network, images), strict=True):
            scores = [scores_by_hand(operator, x) for operator, x in operators]
            for name in diagnostics.LABELS:
                assert float(row[name]) == pytest.approx(np.mean([s[name].mean() for s in scores]), rel=1e-4), name
    check_error_bars(picture)


def check_error_bars(picture: Picture) -> None:
    """The bars are means over seeds, their errors the standard deviation with n - 1, and every seed has a point."""
    assert "standard deviation over seeds (n - 1)" in picture.note
    for axes, name in zip(picture.figure.axes, diagnostics.LABELS, strict=True):
        values = [[float(row[name]) for row in picture.rows if row["stage"] == stage] for stage in (1, 2)]
        heights = [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]
        assert heights == pytest.approx([statistics.fmean(v) for v in values], rel=1e-5)
        errors, *dots = axes.collections
        assert isinstance(errors, LineCollection)
        for (low, high), v in zip(errors.get_segments(), values, strict=True):
            assert (high[1] - low[1]) / 2 == pytest.approx(statistics.stdev(v), rel=1e-3)
        points = np.concatenate([c.get_offsets() for c in dots])
        assert sorted(points[:, 1]) == pytest.approx(sorted(np.concatenate(values)), rel=1e-5)


def test_networks_that_differ_in_more_than_the_seed_are_not_averaged(tmp_path: Path) -> None:
    runs = [
        write_network(tmp_path / "a"),
        write_network(tmp_path / "b", seed=1),
        write_network(tmp_path / "c", mixer_args=dict(scale_init=0.5)),
    ]
    inputs = inputs_of(*runs, images=write_images(tmp_path / "images", 3), count=3, map_px=17)
    assert {name: len(group) for name, group in inputs.groups.items()} == {"TailProp (1)": 2, "TailProp (2)": 1}
    pictures = impulse.draw(inputs, nothing)
    assert [picture.name for picture in pictures] == ["impulse_tailprop_1", "impulse_tailprop_2"]
    texts = [text.get_text() for text in only(diagnostics.draw(inputs, nothing)).figure.legends[0].get_texts()]
    assert texts == [
        "tailprop_pico, digits at 64 px, top-1 62.2 \u00b1 0.0 %, 2 runs",
        "tailprop_pico, digits at 64 px, top-1 62.2 %",
    ]


def test_gates_of_the_picked_images(tmp_path: Path) -> None:
    run = write_network(tmp_path / "run")
    wide(run, 0.4, 0.7)
    inputs = inputs_of(run, images=write_images(tmp_path / "images"), count=6)
    picture, network = only(gates.draw(inputs, nothing)), inputs.networks[0]
    samples = inputs.samples(network)
    operators = inputs_of_operators(network, torch.stack([sample.x for sample in samples]))
    lam = [np.mean([gate_by_hand(operator, x).mean(1) for operator, x in stage], axis=0) for stage in operators]
    order = np.argsort(np.mean(lam, axis=0))
    for picked, index in (("low", order[0]), ("intermediate", order[3]), ("high", order[-1])):
        rows = [row for row in picture.rows if row["picked"] == picked]
        assert {row["image"] for row in rows} == {samples[index].name}
        bars = [float(row["value"]) for row in rows if row["quantity"] != "response"]
        assert bars == pytest.approx([values[index] for values in lam], rel=1e-4)
        check_responses([row for row in rows if row["quantity"] == "response"], operators, int(index))


def check_responses(rows: list[dict[str, Any]], operators: Any, index: int) -> None:
    (stage,) = {row["stage"] for row in rows}
    f = np.array([float(row["frequency"]) for row in rows])
    assert (f[0], f[-1]) == pytest.approx((0, math.sqrt(2) * math.pi), abs=1e-4)
    expected = []
    for operator, x in operators[stage - 1]:
        (k_g, k_c), lam = scales_by_hand(operator), gate_by_hand(operator, x)[index].mean()
        expected.append(lam * np.exp(-k_g * f**2) + (1 - lam) * np.exp(-k_c * f))
    assert [float(row["value"]) for row in rows] == pytest.approx(np.mean(expected, axis=0), abs=2e-5)


def test_decay_of_an_impulse_is_the_closed_form(tmp_path: Path) -> None:
    run = write_network(tmp_path)
    wide(run, 4.0, 3.0)
    picture = only(impulse.draw(inputs_of(run, map_px=SIDE, stage=2), nothing))
    rows, columns = np.indices((SIDE, SIDE)) - SIDE // 2
    r = np.unique(np.hypot(rows, columns).round(9))
    gaussian = np.exp(-(r**2) / 16) / (16 * np.pi)
    cauchy = 3 / (2 * np.pi * (9 + r**2) ** 1.5)
    for lam in (0.0, 0.25, 0.5, 0.75, 1.0):
        own = [row for row in picture.rows if row["setting"] == f"\u03bb = {lam:g}"]
        assert [float(row["distance"]) for row in own] == list(range(SIDE // 2 + 1))
        plane = lam * gaussian + (1 - lam) * cauchy
        near = range(10)  # further out, borders reflect a Cauchy tail
        expected = [plane[np.rint(r) == distance].mean() / plane[0] for distance in near]
        shown = [float(row["response"]) for row in own][: len(near)]
        assert shown == pytest.approx(expected, rel=0.1, abs=2e-3)
        assert [float(row["closed_form"]) for row in own][: len(near)] == pytest.approx(expected, rel=0.03)
    for axes, lam in zip(picture.figure.axes, (0.0, 0.25, 0.5, 0.75, 1.0), strict=False):
        y = np.abs(reflected(SIDE, (SIDE // 2, SIDE // 2), lam))
        assert axes.get_title() == f"\u03bb = {lam:g}\n{100 * y.max() / y.sum():.1f} % at the source"


def test_sources_keep_their_sum_and_fall_with_distance(tmp_path: Path) -> None:
    run = write_network(tmp_path)
    wide(run, 4.0, 3.0)
    picture = only(sources.draw(inputs_of(run, map_px=33, stage=2), nothing))
    assert len(picture.rows) == 15
    assert {(row["source"], row["row"], row["column"]) for row in picture.rows} == {
        ("centre", 16, 16),
        ("mid-offset", 10, 21),
        ("near corner", 3, 3),
    }
    for row in picture.rows:
        assert float(row["sum"]) == pytest.approx(1, abs=1e-5)
        lam, at = float(row["setting"].rpartition(" ")[2]), (row["row"], row["column"])
        y = reflected(33, at, lam)
        assert float(row["peak"]) == pytest.approx(y.max(), rel=1e-4)
        assert float(row["opposite_over_peak"]) == pytest.approx(abs(y[32 - at[0], 32 - at[1]]) / y.max(), rel=1e-3, abs=1e-9)


def reflected(side: int, source: tuple[int, int], lam: float, k_g: float = 4.0, k_c: float = 3.0) -> np.ndarray:
    """The operator with SciPy's cosine transform."""
    x = np.zeros((side, side))
    x[source] = 1
    w = np.pi * np.arange(side) / side
    root = np.hypot(w[:, None], w)
    response = lam * np.exp(-k_g * root**2) + (1 - lam) * np.exp(-k_c * root)
    return np.asarray(scipy.fft.idctn(response * scipy.fft.dctn(x, norm="ortho"), norm="ortho"))


def test_receptive_fields_without_mixers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Cauchy kernel of half-width 8 reaches further than convolutions, and only with its mixers on."""
    monkeypatch.setattr(receptive_field, "LEAST_PX", 128)
    run = write_network(tmp_path / "run")
    wide(run, 32.0, 8.0)
    edit(run, lambda name, value: 20 * value if "_proj.weight" in name else value)  # operators that count
    inputs = inputs_of(run, images=write_images(tmp_path / "images", 3), count=3)
    maps, reach, cases = receptive_field.draw(inputs, nothing)
    assert {row["height_px"] for row in maps.rows} == {128}
    areas = {row["state"]: row["area_90_pct"] for row in maps.rows}
    assert areas["trained"] > 1.5 * areas["trained, mixers off"]
    assert areas["trained, mixers off"] == pytest.approx(area_of_convolutions(run, inputs), rel=0.05)
    far = {row["state"]: float(row["share_beyond"]) for row in reach.rows if row["distance_px"] == "40"}
    assert far["trained"] > 3 * far["trained, mixers off"]
    assert [row["image"] for row in cases.rows] == [sample.name for sample in inputs.samples(inputs.networks[0])]


def area_of_convolutions(run: str, inputs: Any) -> float:
    """The same network with scales of nearly 0, where propagation is the identity."""
    edit(run, lambda name, value: torch.full_like(value, -20.0) if name.endswith("theta") else value)
    network = load_network(run).at_least(128)
    x = torch.stack([sample.x for sample in inputs.samples(network)])
    fields = receptive_field.receptive_field(network.run, x).double().numpy()
    return receptive_field.area_holding(fields.mean(0), 0.9)


def test_share_beyond_a_distance() -> None:
    field = np.zeros((9, 9))
    field[4, 4], field[4, 1], field[4, 7], field[0, 4], field[8, 4] = 6, 1, 1, 1, 1
    assert beyond(field, np.array([0.0, 2.9, 3.1, 4.1])).tolist() == pytest.approx([0.4, 0.4, 0.2, 0.0])


def test_complexity_and_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complexity, "SIDES", (2, 4, 6, 8, 10))
    picture = only(complexity.draw(inputs_of(), nothing))
    assert len(picture.rows) == 20
    for axes, name in zip(picture.figure.axes, ("seconds", "peak_bytes"), strict=True):
        for line, label in zip(axes.lines[:4], complexity.MIXERS, strict=True):
            own = [row for row in picture.rows if row["mixer"] == label]
            n, cost = (np.log([float(row[key]) for row in own[1:]]) for key in ("tokens", name))  # the four largest
            slope = ((n - n.mean()) * (cost - cost.mean())).sum() / ((n - n.mean()) ** 2).sum()
            assert f"$N^{{{slope:.2f}}}$" in str(line.get_label())
    monkeypatch.setattr(kernels, "FRAMES", 2)
    monkeypatch.setattr(kernels, "SIDE", 33)
    for row in only(kernels.draw(inputs_of(), nothing)).rows:
        x, gaussian, cauchy = (float(row[key]) for key in ("x", "gaussian", "cauchy"))
        if row["kind"] == "response by frequency":
            assert (gaussian, cauchy) == pytest.approx((math.exp(-8 * x * x), math.exp(-4 * x)), rel=2e-4)
        else:
            assert gaussian == pytest.approx(math.exp(-x * x / 32) / (32 * math.pi), rel=2e-3)
            assert cauchy == pytest.approx(2 / math.pi / (16 + x * x) ** 1.5, rel=2e-4)


def test_frames_of_the_animation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact operator with a standard deviation and a half-width of 4, from Cauchy to Gaussian."""
    monkeypatch.setattr(kernels, "FRAMES", 3)
    monkeypatch.setattr(kernels, "SIDE", 33)
    drawn: list[tuple[float, np.ndarray]] = []
    monkeypatch.setattr(kernels._Scene, "frame", lambda _scene, y, lam: drawn.append((lam, y)))
    kernels.kernel_frames()
    assert [lam for lam, _ in drawn] == [0.0, 0.5, 1.0]
    for lam, y in drawn:
        assert y == pytest.approx(reflected(33, (16, 16), lam, k_g=8.0, k_c=4.0), abs=1e-9)


def test_restorers_see_what_their_run_degraded() -> None:
    class Settings:
        task = "restore"
        model = type("Model", (), {"in_chans": 1})
        data = RestoreDataConfig(degradation="noise", sigma=50.0)

    predictor = type("Predictor", (), {"settings": Settings})
    image = Image.fromarray(np.full((80, 100), 128, np.uint8))
    x, shown = preparation(predictor)(64)(image, 0)
    assert x.shape == (1, 64, 64)
    assert float(x.mean()) == pytest.approx(128 / 255, abs=0.02)
    assert float(x.std()) == pytest.approx(50 / 255, rel=0.05)
    assert np.asarray(shown).std() == pytest.approx(50, rel=0.1)
    Settings.data = RestoreDataConfig(degradation="jpeg", quality=10)
    gradient = Image.fromarray(np.add.outer(np.arange(64), np.arange(64)).astype(np.uint8))
    x, shown = preparation(predictor)(64)(gradient, 0)
    assert not np.array_equal(np.asarray(shown), np.asarray(gradient))
    assert x.numpy()[0] * 255 == pytest.approx(np.asarray(shown), abs=0.01)
