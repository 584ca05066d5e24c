"""A run small enough for tests: a narrow network of two stages on scikit-learn's digits."""

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import tailprop_cli
from tailprop.engine.trainer import Trainer
from tests.helpers import ROOT

TIMEOUT = 300.0  # seconds

SMALL: dict[str, Any] = {
    "task": "classify",
    "model": {"name": "tailprop_pico", "in_chans": 1, "drop_path": 0.2, "args": {"depths": [1, 1], "dims": [8, 16]}},
    "data": {"source": "digits", "size_px": 32, "resize_px": None, "workers": 0},
    "augment": {"flip": 0.0, "auto_augment": None, "color_jitter": 0.0, "erase": 0.2, "mixup": 0.4, "cutmix": 0.5},
    "optim": {"epochs": 2, "batch_size": 100, "lr": 2e-3, "lr_base_size": None, "warmup_epochs": 0.5},
    "run": {"threads": 1, "device": "cpu", "ema": 0.9, "log_every": 1, "save_every": 2, "tensorboard": False},
}


def settings(**changes: dict[str, Any]) -> dict[str, Any]:
    """Settings of the small run, with changes by section."""
    return SMALL | {section: SMALL.get(section, {}) | values for section, values in changes.items()}


def write_recipe(path: Path, **changes: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(settings(**changes)))
    return path


def train(recipe: Path) -> Path:
    """Train a recipe; the run folder, beside it."""
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(recipe.with_name("run"))]) == 0
    return recipe.with_name("run")


def losses(folder: Path) -> list[float]:
    """The loss of every step, as logged."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "step"]
    assert [row["step"] for row in steps] == list(range(1, len(steps) + 1))
    return [row["loss"] for row in steps]


def last_row(folder: Path) -> dict[str, Any]:
    """The last row of the log: the metrics of the last epoch."""
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def stop_and_resume(recipe: Path, out: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a recipe, stop it with SIGTERM after a step, and resume it."""
    args = ["train", str(recipe), "--run.out", str(out)]
    stop_after(step, args, monkeypatch)
    assert tailprop_cli.main([*args, "--run.resume"]) == 0


def stop_after(step: int, args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command and request a stop after a step."""
    after_step = Trainer._after_step

    def stop_once(self: Trainer) -> None:
        self.stop_signal = signal.SIGTERM if self.loop.global_step == step else None
        after_step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_after_step", stop_once)
        assert tailprop_cli.main(args) == 128 + signal.SIGTERM


def assert_same_run(run: Path, other: Path) -> None:
    """The same losses and, bit for bit, the same weights."""
    assert losses(run) == losses(other)
    weights, others = (load_file(folder / "model.safetensors") for folder in (run, other))
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def launch(
    args: list[str], processes: int = 1, restarts: int = 0, script: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `tailprop ...` in a subprocess, under torchrun for several processes."""
    target = [str(script)] if script else ["-m", "tailprop_cli"]
    command = [sys.executable, *target, *args]
    if processes > 1:
        options = ["--nproc-per-node", str(processes), "--max-restarts", str(restarts), "--master-port", "0"]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *options, *target, *args]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, check=False)


def fork(args: list[str], processes: int = 1, script: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The same by forking a process that has imported everything, without torchrun."""
    server = _fork_server()
    assert server.stdin is not None
    assert server.stdout is not None
    wanted = dict(args=args, processes=processes, script=str(script) if script else None, timeout=TIMEOUT)
    server.stdin.write(json.dumps(wanted) + "\n")
    server.stdin.flush()
    return subprocess.CompletedProcess(args, **json.loads(server.stdout.readline()))


@functools.cache
def _fork_server() -> subprocess.Popen[str]:
    """One server for all tests of this process; it ends when its standard input is closed."""
    command, environment = [sys.executable, "-m", "tests.helpers.fork_server"], os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


def assert_refused(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that the command exits with 2 and one line with the message."""
    assert tailprop_cli.main(args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
