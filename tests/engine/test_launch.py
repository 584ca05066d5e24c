"""Several processes: launches, restarts, failures, and one run in a folder at a time."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

import tailprop_cli
from tailprop.engine import checkpoint
from tailprop.runtime.distributed import agree_on_attempt, launch_id, local_main_first, process_group
from tailprop.tasks.classify.task import Classification
from tests.helpers.folders import folder_recipe, make_folder
from tests.helpers.runs import TIMEOUT, assert_refused, fork, last_row, launch, write_recipe


def names_agreed_on(store: Any, size: int) -> list[str]:
    found: dict[int, str] = {}
    processes = [
        threading.Thread(target=lambda rank=rank: found.update({rank: agree_on_attempt(store, rank, size)}))
        for rank in reversed(range(size))  # rank 0 comes last: the others find the keys of crashed processes
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=20)
    return [found[rank] for rank in range(size)]


def test_every_attempt_has_a_unique_name() -> None:
    store = HashStore()
    attempts = [names_agreed_on(store, size) for size in (3, 3, 2)]
    assert [len(set(names)) for names in attempts] == [1, 1, 1]
    assert len({names[0] for names in attempts}) == 3


def test_crashed_attempt_is_not_joined() -> None:
    store = HashStore()
    store.set("tailprop/name", "dead")  # its rank 0 published a name and crashed before the start
    assert set(names_agreed_on(store, 2)) != {"dead"}
    store.set("tailprop/dead/begin", "somebody")  # another attempt started and crashed later
    store.set("tailprop/name", "dead")
    assert set(names_agreed_on(store, 2)) != {"dead"}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux tells when a process was started")
def test_launch_without_id_is_identified_by_the_agents_start_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert re.fullmatch(rf"agent {os.getppid()} of \S+ since tick \d+", launch_id())
    names = {launch_id()}
    monkeypatch.setattr(os, "getppid", os.getpid)  # another agent
    names.add(launch_id())
    assert len(names) == 2


def test_only_the_same_launch_resumes_automatically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1})
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "monday")
    assert tailprop_cli.main(command) == 0
    assert tailprop_cli.main([*command, "--run.overwrite"]) == 2
    assert "was started by a launch with the same id (monday)" in capsys.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert tailprop_cli.main([*command, "--run.overwrite"]) == 0  # a restart: it must not start over
    assert f"restarted by torchrun, resuming {tmp_path / 'run'}" in capsys.readouterr().out
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "tuesday")
    assert tailprop_cli.main(command) == 2
    assert "holds a run" in capsys.readouterr().err


def test_failure_in_one_process_is_one_line_without_traceback(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "images")
    (root / "train" / "red" / "3.jpg").write_bytes(b"not an image")
    done = fork(folder_recipe(tmp_path, root), processes=2)
    assert done.returncode != 0
    ours = [line for line in done.stderr.splitlines() if "tailprop: " in line]
    assert any("train/red/3.jpg: not an image" in line for line in ours), done.stderr
    assert str(Path(tailprop_cli.__file__)) not in done.stderr  # torchrun prints its own traceback, but not ours


def test_failure_in_one_process_of_eval_is_one_line(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "images")
    assert tailprop_cli.main([*folder_recipe(tmp_path, root), "--optim.epochs", "1"]) == 0
    (root / "val" / "red" / "7.jpg").write_bytes(b"not an image")  # the last image: one process reads it, the other waits
    done = fork(["eval", str(tmp_path / "run")], processes=2)
    assert done.returncode != 0
    assert "val/red/7.jpg: not an image" in done.stderr
    assert str(Path(tailprop_cli.__file__)) not in done.stderr


@pytest.mark.parametrize(
    ("rank", "failed", "acts"), [("0", False, "act, meet"), ("1", False, "meet, act"), ("1", True, "meet")]
)
def test_local_rank_0_downloads_first(rank: str, failed: bool, acts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr("tailprop.runtime.distributed._is_initialized", lambda: True)
    monkeypatch.setattr("tailprop.runtime.distributed.all_gather", lambda value: done.append("meet") or [value, failed])
    if failed:
        with pytest.raises(ValueError, match="another process could not open the data"):
            local_main_first(lambda: done.append("act"))
    else:
        local_main_first(lambda: done.append("act"))
    assert ", ".join(done) == acts


def test_lost_process_is_reported_and_other_errors_propagate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailprop.runtime.distributed._is_initialized", lambda: True)
    with pytest.raises(ValueError, match="another process of this run ended"), process_group("cpu"):
        raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1")
    with pytest.raises(RuntimeError, match="ours"), process_group("cpu"):
        raise RuntimeError("ours")


SLOW = """
import sys, time, tailprop_cli
from tailprop.tasks.classify.task import Classification

def loss(*_):
    print("in a step", flush=True)
    for _ in range(6000):
        time.sleep(0.01)

Classification.loss = loss
sys.exit(tailprop_cli.main(sys.argv[1:]))
"""


def test_first_ctrl_c_is_acknowledged_and_second_stops(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "small.yaml")
    command = [sys.executable, "-c", SLOW, "train", str(recipe), "--run.out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert any(line == "in a step\n" for line in child.stdout)
        child.send_signal(signal.SIGINT)
        assert any("Ctrl-C again stops at once" in line for line in child.stderr)  # the step is still running
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=30) == 130


def test_run_with_closed_pipe_saves_when_stopped(tmp_path: Path) -> None:
    """Like Ctrl-C in `tailprop train ... 2>&1 | tee log`, which ends tee first."""
    recipe, run = write_recipe(tmp_path / "small.yaml", optim={"epochs": 10000}), tmp_path / "run"
    command = [sys.executable, "-m", "tailprop", "train", str(recipe), "--run.out", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        assert child.stdout.readline()
        child.stdout.close()
        before = wait_for_epochs(run, 2)  # with a closed pipe
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == 130
    payload = checkpoint.load(run / "last.pt")
    assert payload["position"]["epoch"] >= before
    assert payload["position"]["global_step"] == last_row(run)["step"]


def wait_for_epochs(run: Path, count: int) -> int:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        text = (run / "metrics.jsonl").read_text() if (run / "metrics.jsonl").exists() else ""
        if (found := text.count('"kind": "epoch"')) >= count:
            return found
        time.sleep(0.1)
    raise TimeoutError


HOLD = "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB); print('held'); "


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1}), tmp_path / "run"
    command = ["train", str(recipe), "--run.out", str(run)]
    assert tailprop_cli.main(command) == 0
    capsys.readouterr()
    wait = [sys.executable, "-uc", HOLD + "sys.stdin.read()", str(run / ".lock")]
    with subprocess.Popen(wait, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"  # the finished run has released the lock
        for extra in ([], ["--run.resume"], ["--run.overwrite"]):
            assert_refused([*command, *extra], "is locked: another process is training in it", capsys)
        other.kill()
    assert tailprop_cli.main([*command, "--run.resume"]) == 0  # a dead process releases its lock


def test_run_locks_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, run = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1}), tmp_path / "run"
    evaluate, tries = Classification.evaluate, []

    def try_to_hold(task: Classification, model: nn.Module) -> dict[str, float]:
        done = subprocess.run([sys.executable, "-c", HOLD, str(run / ".lock")], capture_output=True, check=False)
        tries.append(done.returncode)
        return evaluate(task, model)

    monkeypatch.setattr(Classification, "evaluate", try_to_hold)
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run)]) == 0
    assert tries == [1]


def test_crash_ends_the_workers(tmp_path: Path) -> None:
    """Workers ignore SIGTERM; Python would wait for them forever after the traceback."""
    recipe = write_recipe(tmp_path / "small.yaml", data={"workers": 1})
    script = tmp_path / "fails.py"
    script.write_text(
        "import sys, tailprop_cli\nfrom tailprop.tasks.classify.task import Classification\n"
        "def fail(*_): raise RuntimeError('ours')\n"
        "Classification.loss = fail\nsys.exit(tailprop_cli.main(sys.argv[1:]))\n"
    )
    done = launch(["train", str(recipe), "--run.out", str(tmp_path / "run")], script=script)
    assert done.returncode == 1
    assert "RuntimeError: ours" in done.stderr
