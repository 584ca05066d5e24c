"""Sizes of resized images."""

import pytest

from tailprop.data.resize import fit_within


@pytest.mark.parametrize(
    ("size", "sides", "expected"),
    [
        ((480, 640), (800, 1333), (800, 1067)),  # 1066.67
        ((427, 640), (800, 1333), (800, 1199)),  # 1199.06
        ((640, 427), (800, 1333), (1199, 800)),
        ((50, 75), (33, 1000), (33, 50)),  # 49.5: halves up
        ((100, 900), (80, 133), (15, 133)),  # the longer side decides; 14.78
        ((300, 500), (800, 1333), (800, 1333)),  # 1333.33: both sides reach their bound
        ((1, 5000), (800, 1333), (1, 1333)),  # no side is 0
        ((40, 70), (0.5 * 40, 0.5 * 100), (20, 35)),
        ((40, 70), (1.75 * 40, 1.75 * 100), (70, 123)),  # 122.5
    ],
)
def test_one_side_is_exact_and_the_other_rounded(
    size: tuple[int, int], sides: tuple[float, float], expected: tuple[int, int]
) -> None:
    assert fit_within(*size, *sides) == expected


def test_bound_is_exact_for_every_size() -> None:
    for h in range(301, 700, 7):
        for w in range(301, 1200, 11):
            fitted = fit_within(h, w, 800, 1333)
            assert max(fitted) <= 1333
            assert min(fitted) == 800 or max(fitted) == 1333
