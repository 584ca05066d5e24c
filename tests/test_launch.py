"""Several processes, restarts and the switches of a run."""

import json
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
import torch
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

import tailprop_cli
from tailprop import checkpoint
from tailprop.config import build
from tailprop.distributed import World, agree_on_name, launch_name, together
from tailprop.evaluate import Accuracy
from tailprop.runs import read_settings
from tailprop.tasks.classify import Classification, ClassifyConfig
from tailprop.train import Trainer
from tests.folders import folder_recipe, make_folder
from tests.runs import TIMEOUT, assert_refused, last_row, launch, losses, settings, stop_and_go_on, write_recipe


def names_agreed_on(store: Any, size: int) -> list[str]:
    found: dict[int, str] = {}
    processes = [
        threading.Thread(target=lambda rank=rank: found.update({rank: agree_on_name(store, rank, size)}))
        for rank in reversed(range(size))  # the first process comes last: the others meet what the dead left behind
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=20)
    return [found[rank] for rank in range(size)]


def test_every_attempt_has_a_name_of_its_own() -> None:
    store = HashStore()
    attempts = [names_agreed_on(store, size) for size in (3, 3, 2)]
    assert [len(set(names)) for names in attempts] == [1, 1, 1]
    assert len({names[0] for names in attempts}) == 3


def test_an_attempt_that_died_half_way_is_not_joined() -> None:
    store = HashStore()
    store.set("tailprop/name", "dead")  # its first process called, and died before it began
    assert set(names_agreed_on(store, 2)) != {"dead"}
    store.set("tailprop/dead/begin", "somebody")  # another began, and died later
    store.set("tailprop/name", "dead")
    assert set(names_agreed_on(store, 2)) != {"dead"}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux tells when a process was started")
def test_a_launch_without_a_name_is_known_by_its_agents_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert re.fullmatch(rf"agent {os.getppid()} of \S+ since tick \d+", launch_name())
    names = {launch_name()}
    monkeypatch.setattr(os, "getppid", os.getpid)  # another agent
    names.add(launch_name())
    assert len({name.rpartition(" ")[2] for name in names}) == 2


def test_only_its_own_launch_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1})
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "monday")
    assert tailprop_cli.main(command) == 0
    assert tailprop_cli.main([*command, "--run.overwrite"]) == 2
    assert "was begun by a launch of the same name (monday)" in capsys.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert tailprop_cli.main([*command, "--run.overwrite"]) == 0  # a restart: it must not begin again
    assert "from step 11 on" in capsys.readouterr().out
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "tuesday")
    assert tailprop_cli.main(command) == 2
    assert "holds a run" in capsys.readouterr().err


def test_a_failure_in_one_process_is_a_line_and_no_traceback_of_ours(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pictures")
    (root / "train" / "red" / "3.jpg").write_bytes(b"not a picture")
    done = launch(folder_recipe(tmp_path, root), processes=2)
    assert done.returncode != 0
    ours = [line for line in done.stderr.splitlines() if "tailprop: " in line]
    assert any("train/red/3.jpg: not a picture" in line for line in ours), done.stderr
    assert str(Path(tailprop_cli.__file__)) not in done.stderr  # torchrun prints a traceback of its own, not one of ours


def test_a_failure_in_one_process_of_eval_is_a_line_too(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pictures")
    assert tailprop_cli.main([*folder_recipe(tmp_path, root), "--optim.epochs", "1"]) == 0
    (root / "val" / "red" / "7.jpg").write_bytes(b"not a picture")  # the last one: one process meets it, the other waits
    done = launch(["eval", str(tmp_path / "run")], processes=2)
    assert done.returncode != 0
    assert "val/red/7.jpg: not a picture" in done.stderr
    assert str(Path(tailprop_cli.__file__)) not in done.stderr


def test_a_lost_process_is_said_and_other_errors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailprop.distributed._is_shared", lambda: True)
    with pytest.raises(ValueError, match="another process of this run ended"), together("cpu"):
        raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1")
    with pytest.raises(RuntimeError, match="ours"), together("cpu"):
        raise RuntimeError("ours")


def trained(tmp_path: Path, name: str, *extra: str, epochs: int = 1, **changes: dict[str, Any]) -> dict[str, Tensor]:
    recipe = write_recipe(tmp_path / f"{name}.yaml", optim={"epochs": epochs, "batch": 200}, **changes)
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / name), *extra]) == 0
    return torch.load(tmp_path / name / "last.pt", weights_only=True)["model"]


def test_switches_of_memory_change_nothing(tmp_path: Path) -> None:
    plain = trained(tmp_path, "plain")
    saved = trained(tmp_path, "saved", "--run.grad-checkpointing", "--run.check-gradients")
    assert all(torch.equal(saved[name], value) for name, value in plain.items())


def test_compiled_for_each_size_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[torch.Size] = []

    def eager(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:  # C++ code would take a minute
        sizes.extend(x.shape[-2:] for x in inputs if isinstance(x, Tensor) and x.shape[1:-2] == (1,) and len(x) == 200)
        assert not any(isinstance(x, torch.SymInt) for x in inputs)  # a size left open, which inductor cannot train
        return graph

    whole = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: whole(self, backend=eager, **options))
    straight: dict[str, Any] = {"drop_path": 0.0}  # a captured graph draws its dropped branches otherwise
    grows: dict[str, Any] = {"model": straight, "data": {"train_px": [32, 40], "size_px": 40}}
    trained(tmp_path, "eager", epochs=2, **grows)
    trained(tmp_path, "compiled", "--run.compile", epochs=2, **grows)
    assert sizes == [(32, 32), (40, 40)]
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "eager"), abs=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_reduced_precision_follows_fp32(precision: str, tmp_path: Path) -> None:
    trained(tmp_path, "fp32")
    trained(tmp_path, precision, "--run.precision", precision)
    assert losses(tmp_path / precision) == pytest.approx(losses(tmp_path / "fp32"), abs=0.02)
    scale = torch.load(tmp_path / precision / "last.pt", weights_only=True)["scaler"].get("scale")
    assert scale == (2.0**16 if precision == "fp16" else None)


def test_fp16_that_always_overflows_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Classification, "loss", infinite_gradient)
    recipe = write_recipe(tmp_path / "r.yaml", optim={"epochs": 3}, run={"precision": "fp16"})
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / "run")]) == 2
    assert "gradients overflow FP16" in capsys.readouterr().err


def infinite_gradient(task: Classification, model: nn.Module, batch: Any) -> Tensor:
    """A fine loss whose gradient is infinite."""
    return (0 * model(task.finish(batch.images, batch.seeds)).mean()).abs().sqrt()


def test_the_papers_number_stands_beside_its_own_model_only() -> None:
    def summary(name: str, classes: int) -> str:
        values = settings(model={"name": name}, data={"num_classes": classes}) | {"paper_top1": {"tailprop_tiny": 82.9}}
        task = Classification(build(ClassifyConfig, values), World(0, 1, torch.device("cpu")))
        return task.summary({"top1": 50.0, "top5": 80.0})

    assert summary("tailprop_tiny", 1000) == "top-1 50.00 (the paper, on ImageNet-1K: 82.9), top-5 80.00"
    assert summary("tailprop_tiny", 10) == summary("tailprop_pico", 1000) == "top-1 50.00, top-5 80.00"


def test_resume_needs_the_same_data_but_not_the_first_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = folder_recipe(tmp_path, make_folder(tmp_path / "pictures"))
    assert tailprop_cli.main(args) == 0
    first = tmp_path / "first.safetensors"
    (tmp_path / "run" / "model.safetensors").rename(first)
    tuned = [*args[:-1], str(tmp_path / "tuned"), "--model.init", str(first)]
    assert tailprop_cli.main(tuned) == 0
    first.unlink()
    assert tailprop_cli.main([*tuned, "--run.resume"]) == 0
    (tmp_path / "pictures" / "train" / "red" / "0.jpg").rename(tmp_path / "pictures" / "train" / "blue" / "new.jpg")
    capsys.readouterr()
    assert tailprop_cli.main([*tuned, "--run.resume"]) == 2
    assert "the train data is not what" in capsys.readouterr().err


def test_a_mistake_does_not_cost_the_old_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1})
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert tailprop_cli.main(command) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert tailprop_cli.main([*command, "--run.overwrite", "--model.init", str(tmp_path / "nowhere.pt")]) == 2
    assert tailprop_cli.main([*command, "--run.resume", "--optim.lr", "1"]) == 2
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()} == before
    assert tailprop_cli.main([*command, "--run.overwrite", "--model.init", str(tmp_path / "run")]) == 0  # from itself
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.yaml").write_text("data: coco")
    capsys.readouterr()
    assert tailprop_cli.main([*command[:-1], str(tmp_path / "foreign"), "--run.overwrite"]) == 2
    assert "is not the config.yaml of a run" in capsys.readouterr().err


def test_a_run_stopped_while_it_is_evaluated_goes_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_recipe(tmp_path / "small.yaml")
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / "whole")]) == 0
    command, evaluate = ["train", str(recipe), "--run.out", str(tmp_path / "run")], Classification.evaluate

    def die(*_: object) -> dict[str, float]:
        raise SystemExit(9)

    monkeypatch.setattr(Classification, "evaluate", die)
    with pytest.raises(SystemExit):
        tailprop_cli.main(command)
    monkeypatch.setattr(Classification, "evaluate", evaluate)
    assert tailprop_cli.main([*command, "--run.resume"]) == 0
    positions = [torch.load(tmp_path / name / "last.pt", weights_only=True)["position"] for name in ("whole", "run")]
    kept = [[{k: row[k] for k in ("epoch", "loss", "top1", "val_loss")} for row in p["history"]] for p in positions]
    assert kept[0] == kept[1]
    assert losses(tmp_path / "whole") == losses(tmp_path / "run")


def test_the_manifest_keeps_what_was_run_first_and_how_it_was_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, run = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1}), tmp_path / "run"
    stop_and_go_on(recipe, run, 3, monkeypatch)
    manifest = json.loads((run / "manifest.json").read_text())
    assert [session["from_step"] for session in manifest["continued"]] == [3]
    assert {"command", "commit", "hardware", "torch", "processes"} <= manifest["continued"][0].keys() & manifest.keys()
    before = (run / "manifest.json").read_bytes()
    monkeypatch.setattr("sys.argv", ["tailprop", "again"])
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run), "--run.resume"]) == 0
    assert (run / "manifest.json").read_bytes() == before  # it was finished


def test_an_epoch_that_was_logged_but_not_saved_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["train", str(write_recipe(tmp_path / "small.yaml")), "--run.out", str(tmp_path / "run")]
    save = Trainer._save

    def die_after_the_epoch(self: Trainer, is_best: bool = False) -> None:
        if self.at.history and self.at.pending is None:
            raise SystemExit(9)
        save(self, is_best)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save", die_after_the_epoch)
        with pytest.raises(SystemExit):
            tailprop_cli.main(command)
    assert last_row(tmp_path / "run")["kind"] == "epoch"
    assert tailprop_cli.main([*command, "--run.resume"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == [1, 2]


SLOW = """
import sys, time, tailprop_cli
from tailprop.tasks.classify import Classification

def loss(*_):
    print("in a step", flush=True)
    for _ in range(6000):
        time.sleep(0.01)

Classification.loss = loss
sys.exit(tailprop_cli.main(sys.argv[1:]))
"""


def test_ctrl_c_is_heard_at_once_and_a_second_one_stops(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "small.yaml")
    command = [sys.executable, "-c", SLOW, "train", str(recipe), "--run.out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert any(line == "in a step\n" for line in child.stdout)
        child.send_signal(signal.SIGINT)
        assert any("Ctrl-C again stops at once" in line for line in child.stderr)  # the step still goes on
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=30) == 130


def test_a_run_nobody_listens_to_still_saves_when_it_is_stopped(tmp_path: Path) -> None:
    """As `tailprop train ... 2>&1 | tee log` and Ctrl-C, which ends tee first."""
    recipe, run = write_recipe(tmp_path / "small.yaml", optim={"epochs": 10000}), tmp_path / "run"
    command = [sys.executable, "-m", "tailprop", "train", str(recipe), "--run.out", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        assert child.stdout.readline()
        child.stdout.close()
        before = wait_for_epochs(run, 2)  # said to nobody
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == 130
    payload = checkpoint.load(run / "last.pt")
    assert payload["position"]["epoch"] >= before
    assert payload["position"]["total"] == last_row(run)["step"]


def wait_for_epochs(run: Path, count: int) -> int:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        text = (run / "metrics.jsonl").read_text() if (run / "metrics.jsonl").exists() else ""
        if (found := text.count('"kind": "epoch"')) >= count:
            return found
        time.sleep(0.1)
    raise TimeoutError


def test_the_confusion_drawn_is_that_of_the_exported_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [Accuracy(float(n), 100.0, 0.1, n, torch.zeros(n, 2, dtype=torch.int64), 10) for n in (60, 90, 80)]
    drawn: list[int] = []
    monkeypatch.setattr("tailprop.tasks.classify.evaluate_classifier", lambda *_, **__: results.pop(0))
    monkeypatch.setattr("tailprop.tasks.classify.draw_confusion", lambda counts, *_: drawn.append(int(counts[0, 0])))
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 3, "batch": 400})
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / "run")]) == 0
    assert drawn == [90]
    task = Classification(build(ClassifyConfig, settings()), World(0, 1, torch.device("cpu")))
    task.best = Accuracy(80.0, 100.0, 0.1, 2, torch.zeros(2, 2, dtype=torch.int64), 10)  # what a resumed run has seen of it
    task.draw([{"epoch": n, "loss": 1.0, "top1": top1} for n, top1 in enumerate((90.0, 80.0), start=1)], tmp_path)
    assert drawn == [90]
    assert "the best epoch was before the run was resumed" in capsys.readouterr().out


HOLD = "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB); print('held'); "


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1}), tmp_path / "run"
    command = ["train", str(recipe), "--run.out", str(run)]
    assert tailprop_cli.main(command) == 0
    capsys.readouterr()
    wait = [sys.executable, "-uc", HOLD + "sys.stdin.read()", str(run / ".lock")]
    with subprocess.Popen(wait, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"  # the finished run has let go
        for extra in ([], ["--run.resume"], ["--run.overwrite"]):
            assert_refused([*command, *extra], "is in use: another process is training in it", capsys)
        other.kill()
    assert tailprop_cli.main([*command, "--run.resume"]) == 0  # whoever dies lets go


def test_a_run_holds_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, run = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1}), tmp_path / "run"
    evaluate, tries = Classification.evaluate, []

    def try_to_hold(task: Classification, model: nn.Module) -> dict[str, float]:
        done = subprocess.run([sys.executable, "-c", HOLD, str(run / ".lock")], capture_output=True, check=False)
        tries.append(done.returncode)
        return evaluate(task, model)

    monkeypatch.setattr(Classification, "evaluate", try_to_hold)
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run)]) == 0
    assert tries == [1]


def test_a_failure_of_ours_ends_the_workers_too(tmp_path: Path) -> None:
    """They ignore SIGTERM; Python would wait for them for ever after the traceback."""
    recipe = write_recipe(tmp_path / "small.yaml", data={"workers": 1})
    script = tmp_path / "fails.py"
    script.write_text(
        "import sys, tailprop_cli\nfrom tailprop.tasks.classify import Classification\n"
        "def fail(*_): raise RuntimeError('ours')\n"
        "Classification.loss = fail\nsys.exit(tailprop_cli.main(sys.argv[1:]))\n"
    )
    done = launch(["train", str(recipe), "--run.out", str(tmp_path / "run")], script=script)
    assert done.returncode == 1
    assert "RuntimeError: ours" in done.stderr


def test_a_process_that_sees_another_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = build(ClassifyConfig, settings(run={"out": str(tmp_path)}))
    world = World(0, 1, torch.device("cpu"))
    monkeypatch.setattr("tailprop.train.gather", lambda value: [value, 40] if isinstance(value, int) else [value])
    trainer = Trainer(Classification(config, world), config.optim, config.run, {"data": {}, "run": {}}, world)
    with pytest.raises(ValueError, match="a folder all nodes share"):
        trainer.run()


def test_a_checkpoint_without_its_settings_goes_on_with_the_same_ones_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1})
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert tailprop_cli.main(command) == 0
    (tmp_path / "run" / "config.yaml").unlink()
    assert_refused([*command, "--run.resume", "--optim.lr", "1"], "was trained with other settings", capsys)
    assert tailprop_cli.main([*command, "--run.resume"]) == 0
    divided = ["--optim.batch", "50", "--optim.accumulate", "2", "--data.workers", "1"]
    assert tailprop_cli.main([*command, *divided, "--run.resume"]) == 0
    assert "run" in read_settings(tmp_path / "run" / "model.safetensors")  # of config.yaml: it is still theirs
    payload = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    torch.save(payload | {"format": 1}, tmp_path / "run" / "last.pt")
    assert_refused([*command, "--run.resume"], "not a checkpoint of this version of the program", capsys)


def test_what_is_left_of_a_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1})
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert tailprop_cli.main(command) == 0
    for name in ("config.yaml", "last.pt", "best.pt"):
        (tmp_path / "run" / name).unlink()
    capsys.readouterr()
    assert tailprop_cli.main(command) == 2
    assert "holds a run" in capsys.readouterr().err
    holiday, old = tmp_path / "run" / "holiday.png", tmp_path / "run" / "operator.png"
    holiday.write_bytes(b"")
    old.write_bytes(b"")
    assert tailprop_cli.main([*command, "--run.overwrite"]) == 0
    assert holiday.exists()
    assert not old.exists()
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["processes"] == 1
