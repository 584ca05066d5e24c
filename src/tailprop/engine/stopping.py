"""When a run ends before its last epoch: nothing became better (`run.patience`), or the time is over (`run.time_budget`).

Both follow from what a checkpoint holds, so a resumed run decides as an uninterrupted one.
"""

import math

import torch

from tailprop.engine.config import RunConfig
from tailprop.engine.resume import LoopState
from tailprop.runtime.distributed import World, all_reduce_sum
from tailprop.utils.text import counted

__all__ = ["Stopping"]


class Stopping:
    """The two rules, for a metric of which more is better."""

    def __init__(self, run: RunConfig, metric: str, world: World) -> None:
        self.run, self.metric, self.world = run, metric, world
        self.budget = run.budget_seconds
        self.spent = 0.0  # seconds of training and evaluation, over all resumes, as rank 0 measured them

    def update(self, loop: LoopState) -> None:
        """Read the clock. Every rank calls it, and all see that of rank 0: they have to stop at the same step."""
        if self.budget < math.inf:
            own = loop.seconds + loop.eval_seconds if self.world.is_main else 0.0
            self.spent = float(all_reduce_sum(torch.tensor(own, dtype=torch.float32), self.world.device))

    @property
    def share(self) -> float:
        """The share of the time budget that is spent; 0 without a budget."""
        return self.spent / self.budget

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self.spent >= self.budget

    def reason(self, loop: LoopState) -> str | None:
        """Why the run ends now, in a few words; None if it does not."""
        if self.is_over:
            return f"the time budget of {self.run.time_budget} is spent"
        if self.run.patience and (since := self._evaluations_since_best(loop)) >= self.run.patience:
            best = f", the best was {loop.best[self.metric]:.4g} after epoch {loop.best['epoch']:g}" if loop.best else ""
            return f"no better {self.metric} in {counted(since, 'evaluation')} (run.patience{best})"
        return None

    def _evaluations_since_best(self, loop: LoopState) -> int:
        best = loop.best.get("epoch", -math.inf)
        return sum(self.metric in row and row["epoch"] > best for row in loop.history)
