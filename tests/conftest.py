"""Fixtures of all tests: one thread, so that two pytest workers can share two cores; the same seed for every test;
tables in their default width, without colour.
"""

from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


SIZES = [(1, 1), (1, 5), (2, 3), (7, 7), (8, 8), (13, 56), (56, 56), (33, 100), (257, 130)]
