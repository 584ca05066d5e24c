"""A run that is killed, stopped or crashes ends with the weights of an uninterrupted one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tailprop_cli
from tests.helpers import ROOT
from tests.helpers.runs import fork, launch, losses, write_recipe


def final(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a finished run."""
    payload = torch.load(folder / "last.pt", weights_only=True)
    learned = {f"{part}.{name}": value for part in ("model", "ema") for name, value in payload[part].items()}
    moments = {f"{k}.{name}": v for k, state in payload["optimizer"]["state"].items() for name, v in state.items()}
    return learned | moments | load_file(folder / "model.safetensors")


def assert_same(a: Path, b: Path) -> None:
    left, right = final(a), final(b)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert losses(a) == losses(b)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe, and the folder of its run."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    recipe = write_recipe(folder / "small.yaml", optim={"epochs": 7})
    assert fork(["train", str(recipe), "--run.out", str(folder / "run")]).returncode == 0
    return recipe, folder / "run"


def test_killed_ten_times(uninterrupted: tuple[Path, Path], tmp_path: Path) -> None:
    recipe, whole = uninterrupted
    command = [sys.executable, str(ROOT / "tests/helpers/kill_driver.py"), str(recipe), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    kills = int(done.stdout.split()[1].rstrip(","))
    assert done.stdout.strip().endswith("exit 0"), done
    assert kills == 10, done.stdout
    assert_same(tmp_path / "run", whole)
    assert not list((tmp_path / "run").glob("*.part"))


def stop_early(args: list[str], run: Path) -> None:
    """Start a run and send it SIGTERM after a few steps."""
    command = [sys.executable, "-m", "tailprop_cli", *args]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while child.poll() is None and (not (run / "metrics.jsonl").exists() or len(losses(run)) < 3):
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGTERM)  # to all its processes, as a cluster does
    _, error = child.communicate(timeout=60)
    assert child.returncode == 143
    assert error.startswith("tailprop: stopped after step ")


def test_stopped_by_sigterm_in_the_middle_of_an_epoch(uninterrupted: tuple[Path, Path], tmp_path: Path) -> None:
    recipe, whole = uninterrupted
    run, args = tmp_path / "run", ["train", str(recipe), "--run.out", str(tmp_path / "run"), "--data.workers", "1"]
    stop_early(args, run)
    payload = torch.load(run / "last.pt", weights_only=True)
    assert 0 < payload["position"]["step"] < 11
    assert fork([*args, "--run.resume"]).returncode == 0
    assert_same(run, whole)


def test_number_of_workers_changes_nothing(uninterrupted: tuple[Path, Path], tmp_path: Path) -> None:
    recipe, whole = uninterrupted
    assert fork(["train", str(recipe), "--run.out", str(tmp_path / "run"), "--data.workers", "2"]).returncode == 0
    assert_same(tmp_path / "run", whole)


def test_two_processes_match_one_with_twice_the_batch(tmp_path: Path) -> None:
    plain = {"mixup": 0.0, "cutmix": 0.0}
    recipe = write_recipe(tmp_path / "small.yaml", augment=plain, model={"drop_path": 0.0}, optim={"clip_grad": 1.0})
    one = fork(["train", str(recipe), "--run.out", str(tmp_path / "one"), "--optim.batch-size", "80"])
    two = launch(["train", str(recipe), "--run.out", str(tmp_path / "two"), "--optim.batch-size", "40"], processes=2)
    added = ["--optim.batch-size", "20", "--optim.grad-accum-steps", "2"]
    both = fork(["train", str(recipe), "--run.out", str(tmp_path / "both"), *added], processes=2)
    assert (one.returncode, two.returncode, both.returncode) == (0, 0, 0), two.stderr + both.stderr
    expected = losses(tmp_path / "one")
    assert len(expected) == 28
    assert losses(tmp_path / "two") == pytest.approx(expected, abs=1e-5)
    assert losses(tmp_path / "both") == pytest.approx(expected, abs=1e-5)
    moved = ["train", str(recipe), "--run.out", str(tmp_path / "moved")]
    stop_early([*moved, "--optim.batch-size", "80"], tmp_path / "moved")
    assert fork([*moved, "--optim.batch-size", "40", "--run.resume"], processes=2).returncode == 0
    assert losses(tmp_path / "moved") == pytest.approx(expected, abs=1e-5)


MEASURES = """
import sys
from pathlib import Path
import torch
from tailprop.engine.settings import build
from tailprop.runtime.distributed import process_group
from tailprop.tasks.classify.load import load_classifier
from tailprop.engine.run_settings import read_config
from tailprop.tasks.classify.task import Classification, ClassifyConfig

run, out = map(Path, sys.argv[1:])
with process_group("cpu", 1) as world:
    task = Classification(build(ClassifyConfig, read_config(run)), world)
    task.evaluate(load_classifier(str(run)).model)
    if world.is_main:
        torch.save({"count": task.best.count, "confusion": task.best.confusion}, out)
"""


def test_two_processes_evaluate_every_image_once(uninterrupted: tuple[Path, Path], tmp_path: Path) -> None:
    script = tmp_path / "measures.py"
    script.write_text(MEASURES)
    for processes in (1, 2):
        done = fork([str(uninterrupted[1]), str(tmp_path / f"{processes}.pt")], processes=processes, script=script)
        assert done.returncode == 0, done.stderr
    one, two = (torch.load(tmp_path / f"{processes}.pt", weights_only=True) for processes in (1, 2))
    assert one["count"] == two["count"] == 599  # an odd number: equal shards would repeat an image
    assert torch.equal(one["confusion"], two["confusion"])


STATISTICS = """
import sys
from pathlib import Path
from tailprop.engine.settings import build
from tailprop.engine.recipes import read_recipe
from tailprop.runtime.distributed import all_gather, process_group
from tailprop.tasks.classify import SPEC
from tailprop.tasks.classify.task import Classification, ClassifyConfig
from tailprop.engine.trainer import Trainer

with process_group("cpu", 1) as world:
    config = build(ClassifyConfig, read_recipe(Path(sys.argv[1])))
    trainer = Trainer(SPEC, Classification(config, world), config, world)
    trainer.run()
    norms = {name: value for name, value in trainer.state.model.named_buffers() if "running" in name}
    found = all_gather([value.tolist() for value in norms.values()])
    if world.is_main:
        print("statistics:", len(norms), "same" if found[0] == found[1] else "different")
"""


def test_two_processes_evaluate_with_the_same_batch_norm_statistics(tmp_path: Path) -> None:
    run = {"out": str(tmp_path / "run"), "ema": 0.0}
    model = {"name": "resnet10t", "drop_path": 0.0, "args": {}}
    recipe = write_recipe(tmp_path / "r.yaml", model=model, optim={"epochs": 1, "epoch_steps": 2, "batch_size": 8}, run=run)
    (tmp_path / "norms.py").write_text(STATISTICS)
    done = fork([str(recipe)], processes=2, script=tmp_path / "norms.py")
    assert "statistics: 28 same" in done.stdout, done.stderr


CRASHES_ONCE = """
import os, sys, threading, time
from pathlib import Path
import tailprop_cli

def die(checkpoint):
    while not checkpoint.exists():
        time.sleep(0.01)
    os._exit(7)

if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    threading.Thread(target=die, args=(Path(sys.argv[4]) / "last.pt",), daemon=True).start()
sys.exit(tailprop_cli.main(sys.argv[1:]))
"""


def test_torchrun_restarts_a_crashed_run(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"batch_size": 50})
    script = tmp_path / "crashes_once.py"
    script.write_text(CRASHES_ONCE)
    done = launch(["train", str(recipe), "--run.out", str(tmp_path / "run")], processes=2, restarts=1, script=script)
    assert done.returncode == 0, done.stderr
    assert "from step" in done.stdout
    assert fork(["train", str(recipe), "--run.out", str(tmp_path / "whole")], processes=2).returncode == 0
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_existing_run_is_not_overwritten_or_resumed_with_other_settings(
    uninterrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, whole = uninterrupted
    before = (whole / "last.pt").read_bytes()
    for extra, message in (
        ([], "holds a run; resume it (--run.resume)"),
        (["--run.resume", "--optim.lr", "0.1"], "was started with other settings (optim.lr)"),
        (["--run.resume", "--optim.grad-accum-steps", "2"], "images per step, now there are"),
        (["--run.resume", "--run.overwrite"], "exclude each other"),
    ):
        assert tailprop_cli.main(["train", str(recipe), "--run.out", str(whole), *extra]) == 2
        assert message in capsys.readouterr().err
    assert (whole / "last.pt").read_bytes() == before
