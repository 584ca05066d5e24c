"""The training loop of every task, for one process or many.

Everything that affects the result is a function of the settings or is stored in the checkpoint. A run that is killed at any
time and resumed ends with the same weights, bit for bit, as an uninterrupted one, on a CPU with the same number of threads. GPU
kernels need not be deterministic.
"""

import math
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import torch

from tailprop.engine.config import TaskConfig
from tailprop.engine.learned import learned_values, observe_mixers
from tailprop.engine.matched import build_matched
from tailprop.engine.metrics_log import MetricsLog, open_metrics_log
from tailprop.engine.optim import build_schedule
from tailprop.engine.persistence import Persistence, advice_on_divergence
from tailprop.engine.progress import Bar
from tailprop.engine.resume import LoopState, RunIdentity
from tailprop.engine.run_folder import RunFolder
from tailprop.engine.settings import comparable, config_hash, portable
from tailprop.engine.stopping import Stopping
from tailprop.engine.task import Task, TaskSpec
from tailprop.engine.tracking import open_tracker
from tailprop.engine.train_state import TrainState
from tailprop.runtime.distributed import World, all_gather, all_reduce_sum, any_rank, launch_id, sync_batch_norm_stats
from tailprop.runtime.precision import autocast
from tailprop.runtime.provenance import provenance
from tailprop.runtime.rng import seed_process
from tailprop.runtime.signals import Interrupted, handle_stop_signals
from tailprop.utils.text import counted, say

__all__ = ["Trainer"]

_LONG_EVALUATION = 20.0  # seconds; SLURM and torchrun kill a process about 30 after asking it to stop
# A GPU is synchronized, and stop signals are checked, after at most this many steps and about this many seconds.
_SYNC_STEPS = 10
_SYNC_SECONDS = 5.0


class Trainer:
    """Trains a task in a run folder. `run()` returns the history, a row for each epoch."""

    def __init__(self, spec: TaskSpec, task: Task, config: TaskConfig, world: World) -> None:
        self.spec, self.task, self.config, self.world = spec, task, config, world
        self.folder = RunFolder(config.run.out, spec.artifacts)
        self.loop = LoopState()
        self.stopping = Stopping(config.run, spec.metric, world)
        self.counted = 0  # steps of this epoch whose loss is in loop.loss_sum
        self.last_loss = self.last_lr = 0.0
        self.stop_signal: int | None = None  # the signal that asked the run to stop
        self.eval_seconds = math.inf  # duration of the last evaluation
        self.sync_steps = 1  # steps between synchronizations with a GPU

    def run(self) -> list[dict[str, float]]:
        try:
            return self._run()
        finally:
            self.folder.release()

    def _run(self) -> list[dict[str, float]]:
        run = self.config.run
        self._on_main(lambda: self.folder.check(self.config))
        checkpoint = self.folder.checkpoint_to_resume() if run.resume else None
        self._build(checkpoint is not None)
        self._check_agreement(self.identity.split_hash, "the same dataset; every node needs the same files under --data.root")
        if checkpoint is not None:
            self.loop = self.persistence.restore(checkpoint, run.seed)
            self.counted = self.loop.step
            self.stopping.update(self.loop)
        self._check_agreement(
            self.loop.global_step, f"the same checkpoint in {self.folder.path}; --run.out must be a folder all nodes share"
        )
        self._on_main(lambda: self.folder.begin(self.config, launch_id()))
        if self.world.is_main:
            self.folder.rewind(self.loop.global_step, self.loop.epochs_logged)
            self._print_start()
        with (
            handle_stop_signals(self._ask_to_stop, speak=self.world.is_main),
            Bar(self.schedule.steps, self.loop.global_step, self.identity.global_batch, self.world) as self.bar,
            self._open_log() as self.metrics_log,
        ):
            if self.loop.pending is not None:  # stopped during the evaluation of that epoch
                self._close_epoch(self.loop.pending)
            while not self._is_finished():
                self._epoch()
        if self.world.is_main:
            self.folder.write_history(self.loop.history)
            if (reason := self.stopping.reason(self.loop)) is not None:
                say(f"ended after step {self.loop.global_step}: {reason}")
        return self.loop.history

    def _open_log(self) -> AbstractContextManager[MetricsLog]:
        run, step, tracker = self.config.run, self.loop.global_step, None
        if run.track is not None and self.world.is_main and not self._is_finished():
            tracker = open_tracker(run.track, run.track_project, self.folder.path, portable(self.config), is_new=step == 0)
        return open_metrics_log(self.folder, self.world.is_main, run.tensorboard, step, tracker)

    def _is_finished(self) -> bool:
        if self.loop.epoch >= self.config.optim.epochs:
            return True
        # A run that was killed between its last step and the evaluation after it is not finished.
        return self.stopping.reason(self.loop) is not None and self.loop.epochs_logged == self._epochs_done()

    def _epochs_done(self) -> float:
        return self.loop.epoch + round(self.loop.step / self.task.sampler.steps, 4)

    def _on_main(self, act: Callable[[], None]) -> None:
        """Call `act` on rank 0; if it fails there, every rank raises."""
        problem = None
        if self.world.is_main:
            try:
                act()
            except (ValueError, OSError) as error:
                problem = error
        if any_rank(problem is not None, self.world.device):
            raise problem or ValueError("rank 0 cannot use the run folder; see its error message")

    def _build(self, resumed: bool) -> None:
        seed = self.config.run.seed
        torch.manual_seed(seed)
        model = build_matched(self.task, resumed) if self.config.run.matched_init else self.task.build_model(resumed)
        self.description = self.task.describe(model)
        self.identity = self._identify()
        self.state = TrainState(model, self.config.optim, self.config.run, self.world, self.config.model.freeze)
        self.schedule = build_schedule(self.config.optim, self.task.sampler.steps, self.world.size)
        self.persistence = Persistence(self.folder, self.task, self.config, self.state, self.identity, self.world)
        self.pending = torch.zeros((), dtype=_sum_dtype(self.world.device), device=self.world.device)
        seed_process(seed, self.world.rank)  # from here on every rank has its own random numbers

    def _identify(self) -> RunIdentity:
        optim = self.config.optim
        return RunIdentity(
            config_hash=config_hash(comparable(self.config)),
            split_hash=self.description["split_hash"],
            steps_per_epoch=self.task.sampler.steps,
            division=[self.world.size, optim.batch_size, optim.grad_accum_steps],
            teacher=self.description.get("teacher", {}).get("weights_hash"),
        )

    def _check_agreement(self, value: object, what: str) -> None:
        if any(other != value for other in all_gather(value)):
            raise ValueError(f"not every process sees {what}")

    # One epoch, one step

    def _epoch(self) -> None:
        batches = iter(self.task.batches(self.loop.epoch, self.loop.step))
        self.state.set_training_mode()
        while self.loop.step < self.task.sampler.steps and not self.stopping.is_over:
            began, cpu_began = time.perf_counter(), time.process_time()
            self._step(list(islice(batches, self.config.optim.grad_accum_steps)))
            if self._is_due():
                self._collect_losses()  # synchronizes with a GPU
            took = time.perf_counter() - began
            self.loop.seconds += took
            self.loop.epoch_seconds += took
            self.loop.cpu_seconds += time.process_time() - cpu_began
            self._after_step()
        self._finish_epoch()

    def _step(self, batches: list[Any]) -> None:
        lr = self._lr(self.loop.global_step)
        try:
            self.pending += self.state.step(self.task, batches, lr, self.loop.global_step + 1)
        except FloatingPointError as error:
            raise ValueError(f"{error} in epoch {self.loop.epoch + 1}, step {self.loop.step + 1}; lower --optim.lr") from None
        self.loop.step, self.loop.global_step = self.loop.step + 1, self.loop.global_step + 1
        self.last_lr = lr

    def _lr(self, step: int) -> float:
        """The learning rate by the steps, or by the share of the time budget if that is ahead."""
        return self.schedule.at(max(step, self.stopping.share * self.schedule.steps))

    def _collect_losses(self) -> None:
        """Fetch the losses since the last call from the device, and raise if one is not finite.

        On a CPU this happens at every step. On a GPU it would stall the queue, so it happens only before logging or saving:
        weights corrupted by such a loss are never saved.
        """
        steps = self.loop.step - self.counted
        if steps == 0:
            return
        loss = float(self.pending)
        where = f"epoch {self.loop.epoch + 1}, step {self.loop.step}"
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss or its gradient became {loss} in {where}{'' if steps == 1 else f' or the {steps - 1} before'}; "
                f"{advice_on_divergence(self.folder)} with a lower --optim.lr, or check the images of that step"
            )
        if self.state.overflows:
            raise ValueError(
                f"gradients overflow FP16 even at the smallest loss scale ({where}); earlier checkpoints are intact: start a "
                "new run from their weights (--model.init, another --run.out) with --run.precision bf16 or a lower --optim.lr"
            )
        self.loop.loss_sum += loss
        self.last_loss = loss / steps
        self.counted = self.loop.step
        self.pending.zero_()

    def _is_due(self) -> bool:
        """Whether to log, save or check stop signals after this step; on a CPU always."""
        if self.world.device.type == "cpu" or self.loop.step == self.task.sampler.steps:
            return True
        run = self.config.run
        return any(self.loop.global_step % every == 0 for every in (run.log_every, run.save_every, self.sync_steps))

    def _after_step(self) -> None:
        if not self._is_due():
            return
        run, loop = self.config.run, self.loop
        self.stopping.update(loop)
        self.bar.update(loop.global_step, f"epoch {loop.epoch + 1}/{self.config.optim.epochs}", self.last_loss, self.last_lr)
        if loop.global_step % run.log_every == 0:
            rates = {"img_per_s": self.bar.rate, "memory_gb": self.bar.memory}
            self._log({"kind": "step", "loss": self._mean(self.last_loss), "lr": self.last_lr, **rates})
        if loop.step < self.task.sampler.steps and loop.global_step % run.save_every == 0:
            self.persistence.save(loop)
        self._stop_if_asked(save=True)
        if self.world.device.type != "cpu":  # all ranks have to synchronize at the same steps
            self.sync_steps = steps_within(self._mean(loop.epoch_seconds / loop.step))

    def _mean(self, value: float) -> float:
        """The mean over all ranks."""
        return float(all_reduce_sum(torch.tensor(value), self.world.device)) / self.world.size

    def _stop_if_asked(self, save: bool = False) -> None:
        if any_rank(self.stop_signal is not None, self.world.device):
            if save:
                self.persistence.save(self.loop)
            raise Interrupted(f"stopped after step {self.loop.global_step}", self.stop_signal or signal.SIGTERM)

    def _finish_epoch(self) -> None:
        loop = self.loop
        row: dict[str, float] = {
            "epoch": self._epochs_done(),
            "loss": float(all_reduce_sum(torch.tensor(loop.loss_sum), self.world.device)) / loop.step / self.world.size,
            "lr": self._lr(loop.global_step - 1),
            "minutes": round(loop.seconds / 60, 3),
            "cpu_minutes": round(loop.cpu_seconds / 60, 3),
            "img_per_s": round(loop.step * self.identity.global_batch / loop.epoch_seconds, 2),
        }
        if loop.step == self.task.sampler.steps:  # else the time budget ended the run within an epoch
            loop.epoch, loop.step, loop.epoch_seconds = loop.epoch + 1, 0, 0.0
            loop.loss_sum, self.counted = 0.0, 0
        self._close_epoch(row)

    def _close_epoch(self, row: dict[str, float]) -> None:
        """Evaluate if due, then log and save."""
        loop, epochs, metric = self.loop, self.config.optim.epochs, self.spec.metric
        evaluated = loop.epoch % self.config.run.eval_every == 0 or loop.epoch == epochs or self.stopping.is_over
        if evaluated:
            row |= self._evaluate_safely(row)
        loop.history.append(row)
        improved = evaluated and row[metric] > loop.best.get(metric, -math.inf)  # NaN is never greater
        if improved:
            loop.best = row
        self.persistence.share_broken()
        learned = learned_values(self.state.evaluated)  # also ends what the evaluation observed
        self._log({"kind": "epoch", **row, "broken": len(self.task.broken), "learned": learned})
        self.persistence.save(loop, is_best=improved)
        self.bar.print_epoch(row, self.spec.metrics, len(self.task.broken))
        if loop.epoch < epochs:
            self._stop_if_asked()

    def _evaluate_safely(self, row: dict[str, float]) -> dict[str, float]:
        """Evaluate; a checkpoint is saved first if evaluation may take longer than a cluster waits for a process to stop."""
        self.loop.pending = dict(row)
        if any_rank(self.eval_seconds > _LONG_EVALUATION, self.world.device):
            self.persistence.save(self.loop)
        began = time.perf_counter()
        metrics = self._evaluate()
        self.eval_seconds = time.perf_counter() - began
        self.loop.eval_seconds += self.eval_seconds
        self.stopping.update(self.loop)
        self.loop.pending = None
        return metrics

    def _evaluate(self) -> dict[str, float]:
        model = self.state.evaluated
        sync_batch_norm_stats(model)
        model.eval()
        # A compiled graph would be captured again to observe anything.
        with autocast(self.world.device, self.config.run.precision), observe_mixers(model, not self.config.run.compile):
            metrics = self.task.evaluate(model)
        self.state.set_training_mode()
        return metrics

    # Printed lines, manifest, log

    def _print_start(self) -> None:
        is_finished = self._is_finished() and self.loop.pending is None
        if not is_finished:
            self.folder.write_manifest(self._manifest())
        step = self.loop.global_step
        status = ", already finished" if is_finished else f", resumed from step {step}" if step else ""
        d, schedule = self.description, self.schedule
        say(
            f"{self.task.data_summary()}; {d['parameters'] / 1e6:.1f} M parameters, {d['macs'] / 1e9:.2f} GMACs; "
            f"{counted(self.task.sampler.steps, 'step')} per epoch, {counted(self.config.optim.epochs, 'epoch')}, "
            f"peak learning rate {schedule.lr:.2g}; {self.folder.path}{status}",
            flush=True,
        )
        if schedule.warmup_steps > schedule.steps:
            say(
                f"the warm-up ({schedule.warmup_steps} steps) is longer than the run ({schedule.steps}): the learning rate "
                f"ends at {100 * schedule.steps / schedule.warmup_steps:.0f} % of its peak; shorten it with "
                "--optim.warmup-epochs or --optim.warmup-steps",
                error=True,
            )

    def _manifest(self) -> dict[str, Any]:
        """Provenance of the run: of its first launch, with an entry for each resume."""
        optim = self.config.optim
        launched = {"command": sys.argv[1:], **provenance(self.world.device.type), "processes": self.world.size}
        launched |= {"batch_size": optim.batch_size, "grad_accum_steps": optim.grad_accum_steps}
        about = {"config_hash": self.identity.config_hash, **self.description}
        if self.loop.global_step == 0:
            return launched | about
        before = self.folder.read_manifest() or about
        return before | {"continued": [*before.get("continued", []), {"from_step": self.loop.global_step, **launched}]}

    def _log(self, row: dict[str, Any]) -> None:
        self.metrics_log.write({"epoch": self.loop.epoch, **row, "step": self.loop.global_step})

    def _ask_to_stop(self, number: int) -> None:
        self.stop_signal = number


def _sum_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # Apple GPUs have no float64


def steps_within(seconds: float) -> int:
    """Steps between synchronizations with a GPU, for steps of this duration; stop signals wait that long."""
    return max(1, min(_SYNC_STEPS, int(_SYNC_SECONDS / max(seconds, 1e-9))))
