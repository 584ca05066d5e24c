"""Helpers shared by tests. ROOT is the checkout, FIXTURES the folder of test data."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
