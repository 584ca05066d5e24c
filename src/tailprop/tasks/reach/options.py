"""Options of the commands for the problems that need reach.

Nothing here imports PyTorch before the options are checked: --help and wrong options need none.
"""

from dataclasses import dataclass, field
from pathlib import Path

from tailprop.tasks.common.options import EvalOptions, PredictOptions

__all__ = ["ReachDataChoice", "ReachEval", "ReachPredict"]


@dataclass(frozen=True)
class ReachDataChoice:
    """Test examples other than the run's; settings that are not given stay as in the run."""

    test: Path | None = None
    """Test photographs."""
    test_examples: int | None = None
    """Number of test examples."""
    size_px: int | None = None
    """Side of the pictures."""


@dataclass(frozen=True)
class ReachEval(EvalOptions):
    """Evaluate a network on a problem that needs reach."""

    data: ReachDataChoice = field(default_factory=ReachDataChoice)


@dataclass(frozen=True)
class ReachPredict(PredictOptions):
    """Answer problems posed as pictures; the answers are pictures too."""

    out: Path = Path("answers")
    """Folder for the answers, as PNG."""
