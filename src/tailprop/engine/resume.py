"""Going on with a run: how far it is, and whether a checkpoint is of the run that wants it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["LoopState", "RunIdentity"]


@dataclass
class LoopState:
    """How far the run is, and what it has measured: everything a checkpoint needs besides tensors."""

    epoch: int = 0  # epochs finished
    step: int = 0  # optimizer steps finished in the current epoch
    global_step: int = 0  # optimizer steps finished in all
    loss_sum: float = 0.0  # of those steps
    seconds: float = 0.0  # of training, evaluation not included
    cpu_seconds: float = 0.0  # of this process, all threads, loader processes not included
    epoch_seconds: float = 0.0
    pending: dict[str, float] | None = None  # a finished epoch that has not been evaluated yet
    best: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class RunIdentity:
    """What a run has in common with its checkpoints: one that differs in it is of another run."""

    config_hash: str  # of the settings that decide what is learned
    split_hash: dict[str, str]  # of the data, split by split
    steps_per_epoch: int
    division: list[int]  # of a step: processes, batch size, accumulation; their product stays, they need not

    @property
    def global_batch(self) -> int:
        """Images of a step."""
        return math.prod(self.division)

    def check(self, saved: Mapping[str, Any], path: Path) -> None:
        """Refuse a checkpoint of another run."""
        if saved["config_hash"] not in (
            None,
            self.config_hash,
        ):  # config.yaml, which would name them, is gone or of another run
            raise ValueError(
                f"{path} was trained with other settings; repeat them, or start a new run from its weights with --model.init"
            )
        if (before := math.prod(saved["division"])) != self.global_batch:
            raise ValueError(
                f"{path} was made with {before} images in a step, now there are {self.global_batch}; choose --optim.batch-size "
                "and --optim.grad-accum-steps so that processes x batch_size x grad_accum_steps stays"
            )
        if saved["steps_per_epoch"] != self.steps_per_epoch:  # position and learning rate are counted in steps
            raise ValueError(
                f"{path} was made with {saved['steps_per_epoch']} steps in an epoch, now there are {self.steps_per_epoch}; "
                "put the data back as it was, or start a new run from its weights with --model.init"
            )
        if changed := [name for name, value in self.split_hash.items() if saved["split_hash"].get(name) != value]:
            raise ValueError(
                f"the {' and '.join(changed)} data is not what {path} was trained on: files came, went or changed their "
                "labels; put them back, or start a new run from its weights with --model.init"
            )

    def difference(self, saved: Mapping[str, Any]) -> str | None:
        """What is allowed to change and has changed, in a sentence."""
        if saved["division"] == self.division:
            return None
        before, now = (" x ".join(map(str, division)) for division in (saved["division"], self.division))
        return (
            f"processes x batch_size x grad_accum_steps was {before} and is {now}: the same images in every step, but another "
            "run where batch norm, mixup, CutMix or drop path see the division"
        )
