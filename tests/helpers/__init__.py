"""What tests share. ROOT is the checkout, FIXTURES the files tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
