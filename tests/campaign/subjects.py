"""What is attacked: for every task a tiny dataset, a finished run of it, one that was stopped, and the answers of both."""

import hashlib
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.campaign.outcomes import Outcome
from tests.campaign.processes import Started, attempt, is_running, run, start, wait
from tests.helpers.tiny_tasks import write_tiny

__all__ = ["Subject", "digest", "digest_of_run", "epochs_logged", "prepare"]


@dataclass(frozen=True)
class Subject:
    """A task with its data and runs in a folder of its own, which is the working directory of all commands."""

    task: str
    home: Path
    seconds: float = 3.0  # of a training without kills

    @property
    def whole(self) -> Path:
        """The finished run."""
        return self.home / "whole"

    def train(self, out: str | Path) -> list[str]:
        return ["train", f"{self.task}.yaml", "--run.out", str(out), "--run.resume"]

    def predict(self, where: str | Path, images: str | Path, out: Path) -> list[str]:
        target = out / "answers.json" if self.task == "classify" else out
        return ["predict", str(where), str(images), "--out", str(target), "--device", "cpu", "--threads", "1"]

    def evaluate(self, where: str | Path, out: Path) -> list[str]:
        return ["eval", str(where), "--out", str(out / "eval.json"), "--device", "cpu", "--threads", "1"]

    @cached_property
    def image(self) -> Path:
        """An image of the validation split."""
        return sorted(path for path in (self.home / "data").rglob("*") if path.suffix in (".jpg", ".png"))[-1]

    @cached_property
    def result(self) -> str:
        """The digest of the finished run."""
        return digest_of_run(self.whole)

    @cached_property
    def answer(self) -> str:
        """The digest of the prediction of the finished run."""
        out = self.home / "answer"
        assert run(self.predict(self.whole, self.image, out), self.home).code == 0
        return digest(out)

    def stopped(self, out: Path) -> Path:
        """A copy of a run that was stopped in its second epoch."""
        if not (self.home / "stopped").is_dir():
            self._stop_one(self.home / "stopped")
        return Path(shutil.copytree(self.home / "stopped", out))

    def _stop_one(self, out: Path) -> None:
        while not (out / "best.pt").exists() or digest_of_run(out) == self.result:
            shutil.rmtree(out, ignore_errors=True)
            started = start(self.train(out), self.home)
            while is_running(started) and epochs_logged(out) < 1:
                time.sleep(0.002)
            _ask_to_stop(started)


def _ask_to_stop(started: Started) -> None:
    for child in started.children:
        os.kill(child, signal.SIGTERM)
    wait(started)


def epochs_logged(run_folder: Path) -> int:
    log = run_folder / "metrics.jsonl"
    return log.read_text().count('"kind": "epoch"') if log.exists() else 0


def prepare(task: str, root: Path) -> Subject:
    """Write the data of a task, and train it to the end."""
    subject = Subject(task, root / task)
    subject.home.mkdir(parents=True)

    def write() -> None:
        os.chdir(subject.home)
        write_tiny(task)

    (verdict,) = attempt([(task, write)])
    assert verdict.outcome is Outcome.RIGHT, verdict.detail
    began = time.monotonic()
    done = run(subject.train(subject.whole), subject.home)
    assert done.code == 0, done.err
    return replace(subject, seconds=time.monotonic() - began)


def digest_of_run(folder: Path) -> str:
    """A digest of the exported weights, and of the state at the end, without times."""
    found = hashlib.sha256()
    weights = load_file(folder / "model.safetensors") if (folder / "model.safetensors").exists() else {}
    last = torch.load(folder / "last.pt", weights_only=True) if (folder / "last.pt").exists() else {"model": {}, "position": {}}
    for name, value in sorted([*weights.items(), *last["model"].items()], key=lambda item: item[0]):
        found.update(name.encode() + value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    position = last["position"]
    rows = [{key: value for key, value in row.items() if key not in TIMES} for row in position.get("history", [])]
    found.update(json.dumps([position.get("global_step"), rows]).encode())
    return found.hexdigest()


TIMES = ("minutes", "cpu_minutes", "img_per_s")


def digest(path: Path) -> str:
    """A digest of the names and contents of the files in a folder."""
    found = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        found.update(file.relative_to(path).as_posix().encode() + file.read_bytes())
    return found.hexdigest()
