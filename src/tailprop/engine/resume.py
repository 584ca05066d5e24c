"""Resuming a run: its position, and the check that a checkpoint belongs to it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["LoopState", "RunIdentity"]


@dataclass
class LoopState:
    """Position and metrics of the run: everything in a checkpoint except tensors."""

    epoch: int = 0  # epochs finished
    step: int = 0  # optimizer steps finished in the current epoch
    global_step: int = 0  # optimizer steps finished in total
    loss_sum: float = 0.0  # over the finished steps of the current epoch
    seconds: float = 0.0  # training time, without evaluation
    cpu_seconds: float = 0.0  # CPU time of this process, all threads, without loader processes
    epoch_seconds: float = 0.0  # training time of the current epoch
    eval_seconds: float = 0.0  # time of all evaluations
    pending: dict[str, float] | None = None  # the row of a finished epoch that has not been evaluated yet
    best: dict[str, float] = field(default_factory=dict)  # the row of the best epoch
    history: list[dict[str, float]] = field(default_factory=list)  # a row for each finished epoch, and for the end of a budget

    @property
    def epochs_logged(self) -> float:
        """The epoch of the last row; a fraction if a time budget ended within an epoch."""
        return self.history[-1]["epoch"] if self.history else 0


@dataclass(frozen=True)
class RunIdentity:
    """Values that are equal in a run and in its checkpoints; a checkpoint with other values belongs to another run."""

    config_hash: str  # hash of the settings that affect the result
    split_hash: dict[str, str]  # hash of each split of the dataset
    steps_per_epoch: int
    division: list[int]  # processes, batch size, gradient accumulation steps; only their product must stay the same
    teacher: str | None = None  # hash of the weights that are distilled

    @property
    def global_batch(self) -> int:
        """Images per optimizer step."""
        return math.prod(self.division)

    def check(self, saved: Mapping[str, Any], path: Path) -> None:
        """Raise if a checkpoint belongs to another run."""
        # RunFolder.check names the changed settings; this is for a config.yaml that is missing or was replaced
        if saved["config_hash"] not in (None, self.config_hash):
            raise ValueError(
                f"{path} was trained with other settings; repeat them, or start a new run from its weights with --model.init"
            )
        if (before := math.prod(saved["division"])) != self.global_batch:
            raise ValueError(
                f"{path} was trained with {before} images per step, now there are {self.global_batch}; choose "
                f"--optim.batch-size and --optim.grad-accum-steps so that processes x batch_size x grad_accum_steps is {before}"
            )
        if saved["steps_per_epoch"] != self.steps_per_epoch:  # position and learning rate are counted in steps
            raise ValueError(
                f"{path} was trained with {saved['steps_per_epoch']} steps per epoch, now there are {self.steps_per_epoch}; "
                "restore the dataset, or start a new run from its weights with --model.init"
            )
        if saved.get("teacher") != self.teacher:
            raise ValueError(f"{path} was trained with another teacher; restore its weights at --distill.teacher")
        if changed := [name for name, value in self.split_hash.items() if saved["split_hash"].get(name) != value]:
            raise ValueError(
                f"the {' and '.join(changed)} data is not what {path} was trained on: files were added, removed or "
                "relabelled; restore them, or start a new run from its weights with --model.init"
            )

    def difference(self, saved: Mapping[str, Any]) -> str | None:
        """A note about a permitted change since the checkpoint; None if there is none."""
        if saved["division"] == self.division:
            return None
        before, now = (" x ".join(map(str, division)) for division in (saved["division"], self.division))
        return (
            f"processes x batch_size x grad_accum_steps was {before} and is {now}: every step has the same images, but the "
            "result differs with batch norm, mixup, CutMix or drop path, which depend on the division"
        )
