"""Saving and restoring a run: checkpoints and exported weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailprop.engine import checkpoint
from tailprop.engine.integrity import NotFiniteError, check_all_finite, is_intact
from tailprop.engine.resume import LoopState, RunIdentity
from tailprop.engine.run_folder import RunFolder
from tailprop.engine.settings import portable
from tailprop.engine.task import Task
from tailprop.engine.train_state import TrainState
from tailprop.runtime.distributed import World, all_gather, any_rank
from tailprop.runtime.rng import get_rng_state, seed_process, set_rng_state
from tailprop.utils.errors import missing_memory
from tailprop.utils.text import say

__all__ = ["Persistence", "advice_on_divergence"]


@dataclass(frozen=True)
class Persistence:
    """Saves and restores a run. Every process calls it; rank 0 writes."""

    folder: RunFolder
    task: Task
    config: Any  # the task's settings
    state: TrainState
    identity: RunIdentity
    world: World

    def save(self, loop: LoopState, is_best: bool = False) -> None:
        """Write the last checkpoint; with `is_best`, also the best one and the exported weights."""
        rng = all_gather(get_rng_state(self.world.device))
        self.share_broken()
        losses = all_gather(loop.loss_sum)
        problem: Exception | None = None
        if self.world.is_main:
            try:
                self._write(loop, rng, losses, is_best)
            except NotFiniteError as error:
                advice = f"{advice_on_divergence(self.folder)} with a lower --optim.lr"
                problem = ValueError(f"the training diverged: {error} after step {loop.global_step}; {advice}")
            except (OSError, RuntimeError, MemoryError, ValueError) as error:  # raised below, on every rank
                problem = error
        if any_rank(problem is not None, self.world.device):
            raise problem or OSError("rank 0 could not write the checkpoint; see its error message")

    def share_broken(self) -> None:
        """Share the list of broken files, because a restart may change the ranks."""
        self.task.broken.update({name: reason for part in all_gather(dict(self.task.broken)) for name, reason in part.items()})

    def _write(self, loop: LoopState, rng: list[Any], losses: list[float], is_best: bool) -> None:
        payload = {
            **self.state.state(),
            "scheduler": {"step": loop.global_step},
            "position": vars(loop) | {"loss_sum": losses},
            "rng": rng,
            "broken": dict(self.task.broken),
            "metadata": self._metadata(),
            **vars(self.identity),
        }
        check_all_finite(payload)  # before the export: it may be finite where the optimizer is not
        if is_best:
            checkpoint.save_weights(self.folder.weights, self.state.evaluated, self._metadata())
            self._write_hub_config()
        checkpoint.save(self.folder.last, payload, also=self.folder.best if is_best else None)

    def _write_hub_config(self) -> None:
        """The file from which timm creates the network; it belongs to the weights, and comes after them."""
        if (found := self.task.hub_config()) is not None:
            self.folder.write_hub_config(found)

    def _metadata(self) -> dict[str, str]:
        """Metadata of the exported weights, which makes them usable without the run folder."""
        return self.task.metadata() | {"settings": json.dumps(portable(self.config))}

    def restore(self, path: Path, seed: int) -> LoopState:
        """Load a checkpoint; returns its position."""
        payload = checkpoint.load(path)
        try:
            loop = self._restore(payload, path, seed)
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            if missing_memory(error) is not None:
                raise
            raise ValueError(f"{path} is not a checkpoint of this run ({type(error).__name__}: {error})") from None
        if self.world.is_main:
            if loop.best and not is_intact(self.folder.weights):
                self._export_again()
            if loop.best and not self.folder.has_hub_config():  # of an earlier version, or corrupt
                self._write_hub_config()
            if (difference := self.identity.difference(payload)) is not None:
                say(difference)
        return loop

    def _restore(self, payload: dict[str, Any], path: Path, seed: int) -> LoopState:
        self.identity.check(payload, path)
        try:
            self.state.load(payload)
        except ValueError as error:
            raise ValueError(f"{path} {error}") from None
        losses = payload["position"].pop("loss_sum")
        loop = LoopState(**payload["position"])
        self.task.broken.update(payload["broken"])
        if len(payload["rng"]) == self.world.size:
            loop.loss_sum = losses[self.world.rank]
            set_rng_state(payload["rng"][self.world.rank], self.world.device)
        else:
            loop.loss_sum = sum(losses) / len(losses)
            seed_process(seed, self.world.rank, loop.global_step)
        return loop

    def _export_again(self) -> None:
        """Export the best weights from their checkpoint again, if the exported file was removed or is corrupt."""
        if not is_intact(self.folder.best):
            say(
                f"{self.folder.weights} and {self.folder.best} are missing or corrupt: the best weights so far are lost",
                error=True,
            )
            return
        if self.folder.weights.exists():
            say(f"{self.folder.weights} is corrupt: it is exported again from {self.folder.best}", error=True)
        payload = checkpoint.load(self.folder.best)
        checkpoint.save_tensors(self.folder.weights, payload["ema"] or payload["model"], self._metadata())


def advice_on_divergence(folder: RunFolder) -> str:
    """What to do about numbers that are not finite: none were saved."""
    if folder.last.exists():
        return "earlier checkpoints are intact: start a new run from their weights (--model.init, another --run.out)"
    return "there is no checkpoint yet: restart the run (--run.overwrite)"
