"""The numbers of the Operator page are those of the package."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import tailprop
from tailprop.app.propagation import FREQUENCIES, OPERATORS, Propagation, compute
from tailprop.app.store import Photographs

SLIDERS = dict(size=128, image="", impulses=[[0.5, 0.5]], lam=0.3, k_gauss=6.0, k_cauchy=2.0, order=1.0)
RIVALS = dict(heat_fall=1.0, wave_time=5.0, wave_damping=0.1)


def ask(**changed: Any) -> Propagation:
    return Propagation.parse(SLIDERS | RIVALS | changed)


def test_responses_are_the_equations() -> None:
    numbers, images = compute(ask(), Photographs())
    omega = np.array(numbers["frequencies"])
    gaussian, cauchy = np.exp(-6 * omega**2), np.exp(-2 * omega)
    expected = {
        "gaussian": gaussian,
        "cauchy": cauchy,
        "tailprop": 0.3 * gaussian + 0.7 * cauchy,
        "heat": np.exp(-6 * omega**2 / (1 + omega)),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(numbers["responses"][name], values, atol=2e-5)
    w_d = np.sqrt(np.maximum(omega**2 - 0.05**2, 1e-6))
    wave = np.exp(-0.25) * (np.cos(5 * w_d) + 1.05 * np.sin(5 * w_d) / w_d)
    np.testing.assert_allclose(numbers["responses"]["wave"], wave / wave[0], atol=2e-5)
    assert len(omega) == FREQUENCIES
    assert set(images) == {"input", *OPERATORS, "spectrum_in", "spectrum_out"}


def test_profile_tells_the_tails_apart() -> None:
    numbers, _ = compute(ask(k_gauss=4.0, k_cauchy=3.0), Photographs())
    profile = numbers["profiles"]
    assert profile["gaussian"][30] < 1e-5  # exp(-900/16)
    assert profile["cauchy"][30] == pytest.approx((9 / (9 + 900)) ** 1.5, rel=0.2)  # the plane's kernel, over its peak
    assert profile["tailprop"][30] > 100 * profile["gaussian"][30]


def test_image_is_propagated_at_its_aspect_ratio() -> None:
    photos = Photographs()
    _, images = compute(ask(image="coffee", size=256), photos)
    assert images["tailprop"].shape == (171, 256, 3)
    x = torch.from_numpy(images["input"].copy()).float()[None] / 255
    y = tailprop.tail_propagate(x, (6.0, 2.0), (0.3, 0.7))
    np.testing.assert_allclose(images["tailprop"], y[0].mul(255).round().clamp(0, 255), atol=1)


def test_wave_and_heat_keep_the_brightness() -> None:
    _, images = compute(ask(image="coffee", heat_fall=0.0), Photographs())
    for name in OPERATORS:
        assert abs(images[name].mean() - images["input"].mean()) < 3, name
    np.testing.assert_array_equal(images["heat"], images["gaussian"])  # one diffusivity for all frequencies


def test_only_views_that_change_are_computed() -> None:
    photos = Photographs()
    first, images = compute(ask(image="coffee"), photos)
    numbers, changed = compute(ask(image="coffee", lam=0.31, have=first["keys"]), photos)
    assert set(changed) == {"tailprop", "spectrum_out"}
    assert set(numbers["responses"]) == set(numbers["profiles"]) == {"tailprop"}
    assert (changed["tailprop"] != images["tailprop"]).any()
    for setting, names in {
        "k_gauss": {"tailprop", "spectrum_out", "gaussian", "heat"},
        "order": {"tailprop", "spectrum_out", "cauchy"},
        "wave_time": {"wave"},
        "heat_fall": {"heat"},
    }.items():
        value = {**SLIDERS, **RIVALS}[setting] * 1.1
        assert set(compute(ask(image="coffee", have=first["keys"], **{setting: value}), photos)[1]) == names
    again = compute(ask(image="coffee"), photos)[1]  # what is left out would have been the same
    assert all((again[name] == images[name]).all() for name in images)
    assert set(compute(ask(image="camera", have=first["keys"]), photos)[1]) == set(images)


def test_stale_work_stops_between_views() -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("stale")

    with pytest.raises(RuntimeError, match="stale"):
        compute(ask(), Photographs(), check)
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(order=0), "order must be a number from 0.1 to 2"),
        (dict(lam=math.inf), "lam must be a number"),
        (dict(size=200), "size must be one of 128, 256, 512"),
        (dict(impulses=[[0.5]]), "impulses must be pairs"),
        (dict(impulses=[[0.5, 2]]), "y must be a number from 0 to 1"),
        (dict(impulses=[[0.5, 0.5]] * 65), "at most 64 points"),
        (dict(k_gauss=True), "k_gauss must be a number"),
    ],
)
def test_values_are_checked(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ask(**changed)
