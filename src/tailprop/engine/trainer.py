"""The training loop: one for every task, one process or many, stopped and resumed at will.

All that decides what is learned is a function of the settings, or lives in the checkpoint: a run killed at any moment and
resumed ends with the same weights, bit for bit, as one that was left alone (on a CPU with the same number of threads; a GPU's
own kernels need not repeat themselves).
"""

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tailprop.engine import checkpoint
from tailprop.engine.config import OptimConfig, RunConfig, config_hash
from tailprop.engine.metrics_log import journal
from tailprop.engine.optim import build_schedule
from tailprop.engine.progress import Bar
from tailprop.engine.resume import Identity, Position
from tailprop.engine.run_folder import RunFolder
from tailprop.engine.run_settings import comparable, portable
from tailprop.engine.train_state import Learner
from tailprop.runtime.distributed import World, any_true, gather, launch_name, share_batch_norms, sum_over_processes
from tailprop.runtime.precision import autocast
from tailprop.runtime.provenance import provenance
from tailprop.runtime.rng import get_rng_state, seed_process, set_rng_state
from tailprop.runtime.signals import Interrupted, stop_signals
from tailprop.utils.text import counted

__all__ = ["Task", "Trainer"]

_LONG_EVALUATION = 20.0  # seconds; SLURM and torchrun give a process about 30 to end
_LOOK_UP = 10  # steps after which a GPU is waited for, to see whether the run shall stop; fewer if they take longer than
_PATIENCE = 5.0  # seconds


class Task(Protocol):
    """What the loop has to know of a task."""

    metric: str  # the number that decides which checkpoint is best; higher is better
    order: Any  # .steps: optimizer steps in an epoch
    broken: dict[str, str]  # examples that could not be read

    def build_model(self, resumed: bool) -> nn.Module: ...  # a resumed run's weights come from its checkpoint
    def batches(self, epoch: int, step: int) -> Iterable[Any]: ...
    def loss(self, model: nn.Module, batch: Any) -> Tensor: ...
    def evaluate(self, model: nn.Module) -> dict[str, float]: ...
    def describe(self, model: nn.Module) -> dict[str, Any]: ...
    def metadata(self) -> dict[str, str]: ...
    def draw(self, history: list[dict[str, float]], folder: Path) -> None: ...  # the pictures of a finished run
    def summary(self, best: dict[str, float]) -> str: ...  # its numbers in a line


class Trainer:
    """Trains a task in a run folder. `run()` returns the history, epoch by epoch."""

    def __init__(self, task: Task, optim: OptimConfig, run: RunConfig, settings: dict[str, Any], world: World) -> None:
        self.task, self.optim, self.config, self.settings, self.world = task, optim, run, settings, world
        self.folder = RunFolder(run.out)
        self.at = Position()
        self.counted = 0  # steps of this epoch whose loss has left the device
        self.last_loss = self.last_lr = 0.0
        self.stop_asked: int | None = None  # the signal that asked
        self.eval_seconds = math.inf  # of the last evaluation
        self.look_up = 1  # steps until a GPU is waited for

    def run(self) -> list[dict[str, float]]:
        try:
            return self._run()
        finally:
            self.folder.let_go()

    def _run(self) -> list[dict[str, float]]:
        self._on_first(lambda: self.folder.check(self.settings, self.config.resume, self.config.overwrite))
        resumed = self.config.resume and self.folder.last.exists()
        self._build(resumed)
        if any(other != self.identity.split_hash for other in gather(self.identity.split_hash)):
            raise ValueError("not every process sees the same data; every node needs the same files under --data.root")
        if resumed:
            self._restore(checkpoint.load(self.folder.last))
        if len(set(gather(self.at.total))) > 1:
            raise ValueError(f"not every process sees {self.folder.last}; --run.out has to be a folder all nodes share")
        self._on_first(lambda: self.folder.begin(self.settings, self.config.overwrite, launch_name()))
        if self.world.is_first:
            self.folder.rewind(self.at.total, len(self.at.history))
        self._say_what_is_run()
        with (
            stop_signals(self._ask_to_stop, speak=self.world.is_first),
            Bar(self.schedule.steps, self.at.total, self.identity.global_batch, self.world) as self.bar,
            journal(self.folder, self.world.is_first, self.config.tensorboard, self.at.total) as self.journal,
        ):
            if self.at.pending is not None:  # stopped while it was being evaluated
                self._close_epoch(self.at.pending)
            while self.at.epoch < self.optim.epochs:
                self._epoch()
        if self.world.is_first:
            self.folder.write_history(self.at.history)
        return self.at.history

    def _on_first(self, act: Callable[[], None]) -> None:
        """Let the first process do something to the run folder; if it cannot, every process stops."""
        problem = None
        if self.world.is_first:
            try:
                act()
            except (ValueError, OSError) as error:
                problem = error
        if any_true(problem is not None, self.world.device):
            raise problem or ValueError("the first process refused the run folder")

    def _build(self, resumed: bool) -> None:
        torch.manual_seed(self.config.seed)
        model = self.task.build_model(resumed)
        self.description = self.task.describe(model)
        self.identity = self._identify()
        self.learner = Learner(model, self.optim, self.config, self.world)
        self.model = self.learner.model
        self.schedule = build_schedule(self.optim, self.task.order.steps, self.world.size)
        self.pending = torch.zeros((), dtype=_sum_dtype(self.world.device), device=self.world.device)
        seed_process(self.config.seed, self.world.rank)  # from here on every process draws its own numbers

    def _identify(self) -> Identity:
        return Identity(
            config_hash=config_hash(comparable(self.settings)),
            split_hash=self.description["split_hash"],
            steps_per_epoch=self.task.order.steps,
            division=[self.world.size, self.optim.batch, self.optim.accumulate],
        )

    # One epoch, one step

    def _epoch(self) -> None:
        batches = iter(self.task.batches(self.at.epoch, self.at.step))
        self.learner.wrapped.train()
        while self.at.step < self.task.order.steps:
            began, cpu_began = time.perf_counter(), time.process_time()
            self._step(list(islice(batches, self.optim.accumulate)))
            if self._is_due():
                self._catch_up()  # on a GPU this is where its work is waited for
            took = time.perf_counter() - began
            self.at.seconds += took
            self.at.epoch_seconds += took
            self.at.cpu_seconds += time.process_time() - cpu_began
            self._after_step()
        self._finish_epoch()

    def _step(self, batches: list[Any]) -> None:
        lr = self.schedule.at(self.at.total)
        try:
            self.pending += self.learner.step(self.task, batches, lr, self.at.total + 1)
        except FloatingPointError as error:
            raise ValueError(f"{error} in epoch {self.at.epoch + 1}, step {self.at.step + 1}; lower --optim.lr") from None
        self.at.step, self.at.total = self.at.step + 1, self.at.total + 1
        self.last_lr = lr

    def _catch_up(self) -> None:
        """Take the losses since the last time from the device, and stop at one that is not finite.

        A CPU does so at every step. A GPU would have to wait for it, so there it happens where something is logged or saved:
        weights spoilt by such a loss never reach a checkpoint.
        """
        steps = self.at.step - self.counted
        if steps == 0:
            return
        loss = float(self.pending)
        if not math.isfinite(loss):
            if self.folder.last.exists():
                advice = "earlier checkpoints are intact: start anew from their weights (--model.init, another --run.out)"
            else:
                advice = "there is no checkpoint yet: start again (--run.overwrite)"
            raise ValueError(
                f"the loss or its gradient became {loss} in epoch {self.at.epoch + 1}, step {self.at.step}"
                f"{'' if steps == 1 else f' or the {steps - 1} before'}; {advice} with a lower --optim.lr, or look at the "
                "data there"
            )
        if self.learner.overflows:
            raise ValueError(
                f"gradients overflow FP16 however small the loss is scaled (epoch {self.at.epoch + 1}, step {self.at.step}); "
                "earlier checkpoints are intact: start anew from their weights (--model.init, another --run.out) with "
                "--run.precision bf16 or a lower --optim.lr"
            )
        self.at.loss_sum += loss
        self.last_loss = loss / steps
        self.counted = self.at.step
        self.pending.zero_()

    def _is_due(self) -> bool:
        """Whether something has to be logged or saved after this step; a CPU looks after every one."""
        if self.world.device.type == "cpu" or self.at.step == self.task.order.steps:
            return True
        return any(self.at.total % every == 0 for every in (self.config.log_every, self.config.save_every, self.look_up))

    def _after_step(self) -> None:
        if not self._is_due():
            return
        self.bar.update(self.at.total, f"epoch {self.at.epoch + 1}/{self.optim.epochs}", self.last_loss, self.last_lr)
        if self.at.total % self.config.log_every == 0:
            loss = float(sum_over_processes(torch.tensor(self.last_loss), self.world.device)) / self.world.size
            self._log(
                {
                    "kind": "step",
                    "loss": loss,
                    "lr": self.last_lr,
                    "img_per_s": self.bar.rate,
                    "memory_gb": self.bar.memory,
                }
            )
        if self.at.step < self.task.order.steps and self.at.total % self.config.save_every == 0:
            self._save()
        self._stop_if_asked(save=True)
        if self.world.device.type != "cpu":  # all processes have to look up at the same steps
            seconds = torch.tensor(self.at.epoch_seconds / self.at.step)
            self.look_up = steps_within(float(sum_over_processes(seconds, self.world.device)) / self.world.size)

    def _stop_if_asked(self, save: bool = False) -> None:
        if any_true(self.stop_asked is not None, self.world.device):
            if save:
                self._save()
            raise Interrupted(f"stopped after step {self.at.total}", self.stop_asked or signal.SIGTERM)

    def _finish_epoch(self) -> None:
        images = self.at.step * self.identity.global_batch
        row: dict[str, float] = {
            "epoch": self.at.epoch + 1,
            "loss": float(sum_over_processes(torch.tensor(self.at.loss_sum), self.world.device))
            / self.at.step
            / self.world.size,
            "lr": self.schedule.at(self.at.total - 1),
            "minutes": round(self.at.seconds / 60, 3),
            "cpu_minutes": round(self.at.cpu_seconds / 60, 3),
            "img_per_s": round(images / self.at.epoch_seconds, 2),
        }
        self.at.epoch, self.at.step, self.at.epoch_seconds = self.at.epoch + 1, 0, 0.0
        self.at.loss_sum, self.counted = 0.0, 0
        self._close_epoch(row)

    def _close_epoch(self, row: dict[str, float]) -> None:
        """Evaluate if it is time, and save."""
        evaluated = self.at.epoch % self.config.eval_every == 0 or self.at.epoch == self.optim.epochs
        if evaluated:
            row |= self._evaluate_safely(row)
        self.at.history.append(row)
        improved = evaluated and row[self.task.metric] > self.at.best.get(self.task.metric, -math.inf)
        if improved:
            self.at.best = row
        self._share_broken()
        self._log({"kind": "epoch", **row, "broken": len(self.task.broken)})
        self._save(is_best=improved)
        self.bar.say(row, len(self.task.broken))
        if self.at.epoch < self.optim.epochs:
            self._stop_if_asked()

    def _evaluate_safely(self, row: dict[str, float]) -> dict[str, float]:
        """Evaluate; what was learned is saved before, if it takes so long that a cluster might not wait for it."""
        self.at.pending = dict(row)
        if any_true(self.eval_seconds > _LONG_EVALUATION, self.world.device):
            self._save()
        began = time.perf_counter()
        metrics = self._evaluate()
        self.eval_seconds = time.perf_counter() - began
        self.at.pending = None
        return metrics

    def _evaluate(self) -> dict[str, float]:
        model = self.learner.evaluated
        share_batch_norms(model)
        model.eval()
        with autocast(self.world.device, self.config.precision):
            metrics = self.task.evaluate(model)
        self.model.train()
        return metrics

    # What is kept

    def _save(self, is_best: bool = False) -> None:
        rng = gather(get_rng_state(self.world.device))
        self._share_broken()
        losses = gather(self.at.loss_sum)
        problem = None
        if self.world.is_first:
            try:
                self._write(rng, losses, is_best)
            except (OSError, RuntimeError, MemoryError) as error:  # the others wait to hear of it
                problem = error
        if any_true(problem is not None, self.world.device):
            raise problem or OSError("the first process could not write the checkpoint")

    def _share_broken(self) -> None:
        """Every process knows all that is broken, whatever rank it has after a restart."""
        self.task.broken.update({name: reason for part in gather(dict(self.task.broken)) for name, reason in part.items()})

    def _write(self, rng: list[Any], losses: list[float], is_best: bool) -> None:
        payload = {
            **self.learner.state(),
            "scheduler": {"step": self.at.total},
            "position": vars(self.at) | {"loss_sum": losses},
            "rng": rng,
            "broken": dict(self.task.broken),
            **vars(self.identity),
        }
        if is_best:
            checkpoint.save_weights(self.folder.weights, self.learner.evaluated, self._notes())
        checkpoint.save(self.folder.last, payload, also=self.folder.best if is_best else None)

    def _notes(self) -> dict[str, str]:
        """What the exported weights say of themselves: enough to be used far from this run."""
        return self.task.metadata() | {"settings": json.dumps(portable(self.settings))}

    def _restore(self, payload: dict[str, Any]) -> None:
        self.identity.check(payload, self.folder.last)
        try:
            self.learner.load(payload)
        except ValueError as error:
            raise ValueError(f"{self.folder.last} {error}") from None
        losses = payload["position"].pop("loss_sum")
        self.at = Position(**payload["position"])
        self.counted = self.at.step
        self.task.broken.update(payload["broken"])
        if len(payload["rng"]) == self.world.size:
            self.at.loss_sum = losses[self.world.rank]
            set_rng_state(payload["rng"][self.world.rank], self.world.device)
        else:
            self.at.loss_sum = sum(losses) / len(losses)
            seed_process(self.config.seed, self.world.rank, self.at.total)
        if self.world.is_first and self.at.best and not self.folder.weights.exists():
            self._export_again()
        if self.world.is_first and (difference := self.identity.difference(payload)) is not None:
            print(difference)

    def _export_again(self) -> None:
        """The best weights, from their checkpoint, where somebody removed the file that was made of it."""
        if not self.folder.best.exists():
            print(f"{self.folder.weights} and {self.folder.best} are gone: the best weights are lost", file=sys.stderr)
            return
        payload = checkpoint.load(self.folder.best)
        checkpoint.save_tensors(self.folder.weights, payload["ema"] or payload["model"], self._notes())

    # What is said

    def _say_what_is_run(self) -> None:
        if not self.world.is_first:
            return
        is_finished = self.at.epoch >= self.optim.epochs and self.at.pending is None
        if not is_finished:
            self.folder.write_manifest(self._manifest())
        begun = ", already finished" if is_finished else f", from step {self.at.total} on" if self.at.total else ""
        d = self.description
        classes = f"{counted(d['classes'], 'class')}; " if "classes" in d else ""
        pictures = ", ".join(f"{count} {split}" for split, count in d["examples"].items())
        print(
            f"{classes}pictures: {pictures}; {d['parameters'] / 1e6:.1f} M parameters, {d['macs'] / 1e9:.2f} GMACs; "
            f"{counted(self.task.order.steps, 'step')} in an epoch, {counted(self.optim.epochs, 'epoch')}, peak rate "
            f"{self.schedule.lr:.2g}; {self.folder.path}{begun}",
            flush=True,
        )
        if self.schedule.warmup_steps > self.schedule.steps:
            print(
                f"the warm-up ({self.schedule.warmup_steps} steps) is longer than the run ({self.schedule.steps}): the "
                f"learning rate ends at {100 * self.schedule.steps / self.schedule.warmup_steps:.0f} % of its "
                "peak; shorten it with --optim.warmup-epochs or --optim.warmup-steps",
                file=sys.stderr,
            )

    def _manifest(self) -> dict[str, Any]:
        """What is run; of a resumed run, what was run first, and each time it was continued."""
        launched = {"command": sys.argv[1:], **provenance(self.world.device.type), "processes": self.world.size}
        launched |= {"batch": self.optim.batch, "accumulate": self.optim.accumulate}
        about = {"config_hash": self.identity.config_hash, **self.description}
        if self.at.total == 0:
            return launched | about
        before = self.folder.read_manifest() or about
        return before | {"continued": [*before.get("continued", []), {"from_step": self.at.total, **launched}]}

    def _log(self, row: dict[str, Any]) -> None:
        self.journal.write({"epoch": self.at.epoch, **row, "step": self.at.total})

    def _ask_to_stop(self, number: int) -> None:
        self.stop_asked = number


def _sum_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # Apple GPUs have no float64


def steps_within(seconds: float) -> int:
    """How many steps of so many seconds may pass before somebody who asks a GPU to stop is heard."""
    return max(1, min(_LOOK_UP, int(_PATIENCE / max(seconds, 1e-9))))
