"""Train the runs of a study in child processes, several at a time."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
import yaml
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from tailprop.engine.run_folder import RunFolder
from tailprop.engine.settings import to_dict
from tailprop.runtime.signals import Interrupted, handle_stop_signals
from tailprop.studies.ablate.study import Run
from tailprop.utils.files import write_atomically
from tailprop.utils.parsing import sealed_row
from tailprop.utils.terminal import Console

__all__ = ["LOG", "Machine", "Runner", "machine_for"]

LOG = "ablate.log"
_POLL = 0.1  # seconds
_READ = 2.0  # seconds between looks at the logs of running processes


@dataclass(frozen=True)
class Machine:
    """How many runs train at a time, with how many threads, on which GPUs."""

    jobs: int
    threads: int
    gpus: tuple[str, ...] = ()

    def environment(self, slot: int) -> dict[str, str]:
        chosen = {"CUDA_VISIBLE_DEVICES": self.gpus[slot % len(self.gpus)]} if self.gpus else {}
        return os.environ | {"OMP_NUM_THREADS": str(self.threads)} | chosen

    def __str__(self) -> str:
        where = f"{len(self.gpus)} GPUs" if self.gpus else "the CPU"
        return f"{self.jobs} at a time on {where}, threads of each: {self.threads}"


def machine_for(runs: Sequence[Run], jobs: int, threads: int) -> Machine:
    """A run per GPU, or on a CPU as many runs of one thread as there are cores; 0 = choose."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus: tuple[str, ...] = ()
    if torch.cuda.is_available() and any(run.config.run.device in ("auto", "cuda") for run in runs):
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        gpus = tuple(visible or map(str, range(torch.cuda.device_count())))
        jobs = jobs or len(gpus)
        return Machine(jobs, threads or max(1, cores // jobs), gpus)
    threads = threads or 1
    return Machine(jobs or max(1, cores // threads), threads)


@dataclass
class _Child:
    run: Run
    slot: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    epochs: int = 0  # finished epochs, as logged


class Runner:
    """Trains runs; `finished` is called after each. `failures` maps the names of failed runs to the last line of their log."""

    def __init__(self, runs: Sequence[Run], machine: Machine, finished: Callable[[Run], str]) -> None:
        self.waiting, self.machine, self.finished = list(runs), machine, finished
        self.count = len(runs)
        self.failures: dict[str, str] = {}
        self.children: list[_Child] = []
        self.done = 0
        self.closed_epochs = 0  # of the runs that have ended
        self.stop_signal: int | None = None
        console = Console() if Console().is_terminal else Console(width=120)
        columns = ("{task.description}", BarColumn(20), "{task.percentage:>3.0f} %", TimeElapsedColumn(), "left")
        note = "{task.fields[note]}"
        self.progress = Progress(*columns, TimeRemainingColumn(elapsed_when_finished=False), note, console=console)
        self.bar = self.progress.add_task("runs", total=sum(run.config.optim.epochs for run in runs), note="")
        self.began = time.monotonic()

    def run(self) -> None:
        with handle_stop_signals(self._ask_to_stop, speak=True), self.progress:
            try:
                self._loop()
            finally:
                for child in self.children:  # after an error or a second Ctrl-C
                    child.process.kill()
                    child.process.wait()
        if self.stop_signal is not None:
            message = f"stopped with {self.done} of {self.count} runs finished; the same command resumes"
            raise Interrupted(message, self.stop_signal)

    def _loop(self) -> None:
        looked = 0.0
        while self.children or (self.waiting and self.stop_signal is None):
            self._start_more()
            for child in [child for child in self.children if child.process.poll() is not None]:
                self._close(child)
            if time.monotonic() - looked > _READ:
                self._look()
                looked = time.monotonic()
            time.sleep(_POLL)

    def _start_more(self) -> None:
        while self.waiting and len(self.children) < self.machine.jobs and self.stop_signal is None:
            free = set(range(self.machine.jobs)) - {child.slot for child in self.children}
            self.children.append(self._start(self.waiting.pop(0), min(free)))

    def _start(self, run: Run, slot: int) -> _Child:
        run.folder.mkdir(parents=True, exist_ok=True)
        settings = run.folder.with_suffix(".yaml")  # also a recipe: the run can be resumed by hand
        text = yaml.safe_dump(to_dict(_with_threads(run, self.machine.threads)), sort_keys=False)
        write_atomically(settings, lambda part: part.write_text(text))
        log = (run.folder / LOG).open("ab")
        command = [sys.executable, "-m", "tailprop.studies.ablate.child", str(settings), str(run.folder)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self.machine.environment(slot),
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others
        )
        return _Child(run, slot, process, log)

    def _close(self, child: _Child) -> None:
        """Record the result of a process that has ended."""
        self.children.remove(child)
        child.log.close()
        if child.process.stdin is not None:
            child.process.stdin.close()
        self.closed_epochs += child.run.config.optim.epochs
        code = child.process.returncode
        if code == 0:
            self.done += 1
            self._print(f"{child.run.name}: {self.finished(child.run)}")
        elif self.stop_signal is None:
            self.failures[child.run.name] = _last_line(child.run.folder / LOG, code)
            self._print(f"{child.run.name} failed: {self.failures[child.run.name]}")

    def _look(self) -> None:
        """Read how far the running processes are."""
        for child in self.children:
            child.epochs = _finished_epochs(RunFolder(child.run.folder).metrics)
        completed = self.closed_epochs + sum(child.epochs for child in self.children)
        minutes = (time.monotonic() - self.began) / 60
        note = f"{self.done}/{self.count} runs, {completed / max(minutes, 1e-9):.1f} epochs/min"
        self.progress.update(self.bar, completed=completed, note=note)

    def _print(self, text: str) -> None:
        self._look()
        ended = self.done + len(self.failures)
        left = self.progress.tasks[0].time_remaining
        rest = f"; {left / 60:.1f} min left" if left and ended < self.count else ""
        self.progress.console.print(f"{ended}/{self.count} {text}{rest}", soft_wrap=True, markup=False, highlight=False)

    def _ask_to_stop(self, number: int) -> None:
        self.stop_signal = number
        for child in self.children:
            child.process.terminate()  # it saves a checkpoint and exits


def _with_threads(run: Run, threads: int) -> object:
    from dataclasses import replace

    return replace(run.config, run=replace(run.config.run, threads=threads))


def _finished_epochs(metrics: Path) -> int:
    """The finished epochs of a run, from the last complete line of its log."""
    if not metrics.is_file():
        return 0
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 100_000))
            lines = file.read().split(b"\n")
        return int(sealed_row(lines[-2], metrics)["epoch"])
    except (OSError, ValueError, LookupError, TypeError, OverflowError):  # not started, a longer line, or a corrupt one
        return 0


def _last_line(path: Path, code: int) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{lines[-1] if lines else 'no output'} ({ended}, {path})"
