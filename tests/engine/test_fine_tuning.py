"""Runs that are fine-tuned, stopped early or tracked; they resume as others do."""

import csv
import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tailprop_cli
from tailprop.engine.config import RunConfig
from tailprop.engine.resume import LoopState
from tailprop.engine.stopping import Stopping
from tailprop.engine.trainer import Trainer
from tailprop.runtime.distributed import World
from tailprop.utils.durations import duration_text, parse_duration
from tests.helpers.runs import assert_refused, assert_same_run, fork, losses, stop_after, stop_and_resume, write_recipe

ALONE = World(0, 1, torch.device("cpu"))
TUNED = {"layer_decay": 0.7, "head_lr": 5.0}


@pytest.fixture(scope="module")
def init(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("init")
    recipe = write_recipe(folder / "small.yaml", optim={"epochs": 1})
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(folder / "run")]) == 0
    return folder / "run"


def tuned(path: Path, init: Path) -> Path:
    return write_recipe(path, model={"init": str(init), "freeze": ["stem", "stages.0"]}, optim=TUNED)


def train(recipe: Path, out: Path, *options: str) -> int:
    return tailprop_cli.main(["train", str(recipe), "--run.out", str(out), *options])


def history(run: Path) -> list[dict[str, str]]:
    with (run / "history.csv").open() as file:
        return list(csv.DictReader(file))


def epochs(run: Path) -> list[float]:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row["epoch"] for row in rows if row["kind"] == "epoch"]


def test_fine_tuned_run_resumes_bit_for_bit(init: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tuned(tmp_path / "tuned.yaml", init)
    assert train(recipe, tmp_path / "whole") == 0
    stop_and_resume(recipe, tmp_path / "stopped", 7, monkeypatch)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
    before, after = load_file(init / "model.safetensors"), load_file(tmp_path / "whole" / "model.safetensors")
    frozen = [name for name in after if name.startswith(("stem.", "stages.0."))]
    assert frozen
    assert all(torch.equal(before[name], after[name]) for name in frozen)
    assert not torch.equal(before["head.fc.weight"], after["head.fc.weight"])


def test_fine_tuning_with_two_processes(init: Path, tmp_path: Path) -> None:
    recipe = tuned(tmp_path / "tuned.yaml", init)
    plain = ["--augment.mixup", "0", "--augment.cutmix", "0", "--model.drop-path", "0"]
    one = fork(["train", str(recipe), "--run.out", str(tmp_path / "one"), "--optim.batch-size", "80", *plain])
    two = fork(["train", str(recipe), "--run.out", str(tmp_path / "two"), "--optim.batch-size", "40", *plain], processes=2)
    assert (one.returncode, two.returncode) == (0, 0), two.stderr
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)


def test_freezing_another_module_is_another_run(init: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tuned(tmp_path / "tuned.yaml", init)
    assert train(recipe, tmp_path / "run", "--optim.epochs", "1") == 0
    args = ["train", str(tmp_path / "run"), "--run.resume", "--model.freeze", "stem"]
    assert_refused(args, "was started with other settings (model.freeze)", capsys)
    assert_refused(["train", str(recipe), "--model.freeze", "stem", "stem"], "model.freeze must be names of modules", capsys)


# Early stopping


def test_patience_counts_evaluations_since_the_best() -> None:
    stopping = Stopping(RunConfig(patience=2), "top1", ALONE)
    loop = LoopState()
    for epoch, top1 in ((1, 50.0), (2, 60.0), (3, 60.0), (4, None), (5, 59.0)):
        assert stopping.reason(loop) is None
        row = {"epoch": float(epoch)} | ({} if top1 is None else {"top1": top1})
        loop.history.append(row)
        if top1 is not None and top1 > loop.best.get("top1", 0):
            loop.best = row
    assert stopping.reason(loop) == "no better top1 in 2 evaluations (run.patience, the best was 60 after epoch 2)"


def test_run_stops_early_and_continues_with_more_patience(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    still = {"lr": 0.0, "min_lr": 0.0, "epochs": 5}  # nothing becomes better
    recipe, run = write_recipe(tmp_path / "small.yaml", optim=still, run={"ema": 0.0}), tmp_path / "run"
    assert train(recipe, run, "--run.patience", "2") == 0
    assert "ended after step 33: no better top1 in 2 evaluations (run.patience, the best was" in capsys.readouterr().out
    assert epochs(run) == [1, 2, 3]
    assert train(recipe, run, "--run.patience", "2", "--run.resume") == 0
    assert "already finished" in capsys.readouterr().out
    assert train(recipe, run, "--run.patience", "3", "--run.resume") == 0
    assert epochs(run) == [1, 2, 3, 4]
    assert [float(row["epoch"]) for row in history(run)] == [1, 2, 3, 4]


# Time budget


def test_durations() -> None:
    found = [parse_duration(text, "it") for text in ("45s", "30m", "1h30m", "1.5 h", "2d")]
    assert found == [45, 1800, 5400, 5400, 172800]
    for text in ("", "30", "m", "1m30", "-1m", "1h 2", "nan"):
        with pytest.raises(ValueError, match="it must be a time with units, such as 45s"):
            parse_duration(text, "it")
    assert [duration_text(s) for s in (5, 90, 7200, 200_000)] == ["5 s", "1.5 min", "2.0 h", "2.3 days"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes a second, and evaluation nothing."""
    update = Stopping.update

    def tick(self: Stopping, loop: LoopState) -> None:
        loop.seconds, loop.eval_seconds = float(loop.global_step), 0.0
        update(self, loop)

    monkeypatch.setattr(Stopping, "update", tick)


@pytest.mark.usefixtures("clock")
def test_time_budget_ends_within_an_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = write_recipe(tmp_path / "small.yaml", optim={"epochs": 4}), tmp_path / "run"
    budget = ["--run.time-budget", "15s"]
    assert train(recipe, run, *budget) == 0
    assert "ended after step 15: the time budget of 15s is spent" in capsys.readouterr().out
    assert epochs(run) == [1, pytest.approx(15 / 11, abs=1e-3)]
    assert (run / "model.safetensors").exists()
    assert "top1" in json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    rates = [row["lr"] for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if row["kind"] == "step"]
    assert max(rates) > 1e-3
    assert rates[-1] < 0.1 * max(rates)  # it has decayed by the clock: of the epochs only a third are done
    assert train(recipe, run, *budget, "--run.resume") == 0
    assert "already finished" in capsys.readouterr().out
    assert train(recipe, run, "--run.time-budget", "30s", "--run.resume") == 0
    assert "resumed from step 15" in capsys.readouterr().out
    assert epochs(run) == [1, pytest.approx(15 / 11, abs=1e-3), 2, pytest.approx(30 / 11, abs=1e-3)]
    assert len(losses(run)) == 30
    assert train(recipe, run, "--run.time-budget", "1h", "--run.resume") == 0
    assert epochs(run)[-2:] == [3, 4]


@pytest.mark.usefixtures("clock")
def test_a_run_killed_before_its_last_evaluation_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, run = write_recipe(tmp_path / "small.yaml"), tmp_path / "run"
    args = ["train", str(recipe), "--run.out", str(run), "--run.time-budget", "7s"]
    stop_after(7, args, monkeypatch)
    assert not (run / "model.safetensors").exists()
    assert tailprop_cli.main([*args, "--run.resume"]) == 0
    assert (run / "model.safetensors").exists()
    assert epochs(run) == [pytest.approx(7 / 11, abs=1e-3)]
    assert len(losses(run)) == 7


def test_all_processes_stop_at_the_same_step(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"batch_size": 50, "epochs": 50})
    done = fork(["train", str(recipe), "--run.out", str(tmp_path / "run"), "--run.time-budget", "0.5s"], processes=2)
    assert done.returncode == 0, done.stderr
    assert "the time budget of 0.5s is spent" in done.stdout
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_wrong_budget_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["train", "digits", "--run.time-budget", "30"], "run.time_budget must be a time with units", capsys)
    assert_refused(["train", "digits", "--run.time-budget", "0s"], "must be longer than nothing", capsys)
    assert_refused(["train", "digits", "--run.patience", "-1"], "run.patience must be at least 0", capsys)


# Trackers: modules with the signatures of Trackio 0.30, wandb 0.30 and MLflow 3


class Recorder:
    """What a tracker was told."""

    def __init__(self) -> None:
        self.opened: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.params: dict[str, str] = {}
        self.finished = 0
        self.fail_at: int | None = None

    def log(self, values: dict[str, float], step: int) -> None:
        if self.fail_at == len(self.logged):
            raise ConnectionError("the server\nis away")
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished += 1


def fake_trackio(record: Recorder) -> Any:
    def init(project: str, name: str | None = None, config: dict[str, Any] | None = None, resume: str = "never") -> Any:
        assert resume in ("must", "allow", "never")
        record.opened.append(dict(project=project, name=name, config=config, resume=resume))
        return SimpleNamespace(name=name if resume == "allow" else f"{name}-1")

    def log(metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        record.log(metrics, step)

    return SimpleNamespace(init=init, log=log, finish=record.finish)


def fake_wandb(record: Recorder) -> Any:
    def init(
        project: str | None = None,
        dir: str | None = None,  # noqa: A002 - wandb's names
        id: str | None = None,  # noqa: A002
        name: str | None = None,
        config: dict[str, Any] | None = None,
        resume: str | None = None,
    ) -> Any:
        assert resume in ("allow", None)
        assert Path(str(dir)).is_dir()
        record.opened.append(dict(project=project, name=name, config=config, resume=resume, id=id))

        def log(data: dict[str, float], step: int | None = None, commit: bool | None = None) -> None:  # noqa: ARG001
            assert step is not None
            record.log(data, step)

        return SimpleNamespace(id=id or "abc123", log=log, finish=record.finish)

    return SimpleNamespace(init=init)


def fake_mlflow(record: Recorder) -> Any:
    def start_run(run_id: str | None = None, experiment_id: str | None = None, run_name: str | None = None) -> Any:
        assert experiment_id is None
        record.opened.append(dict(id=run_id, name=run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "f00"))

    def log_metrics(metrics: dict[str, float], step: int | None = None, synchronous: bool | None = None) -> None:  # noqa: ARG001
        assert step is not None
        record.log(metrics, step)

    def log_params(params: dict[str, Any]) -> None:
        assert len(params) <= 100
        assert not set(params) & set(record.params)  # MLflow refuses other values
        record.params |= params

    def set_experiment(experiment_name: str) -> None:
        record.opened.append(dict(project=experiment_name))

    return SimpleNamespace(
        start_run=start_run,
        log_metrics=log_metrics,
        log_params=log_params,
        set_experiment=set_experiment,
        end_run=record.finish,
    )


FAKES = {"trackio": fake_trackio, "wandb": fake_wandb, "mlflow": fake_mlflow}


@pytest.fixture(params=FAKES)
def tracker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Recorder]:
    record = Recorder()
    monkeypatch.setitem(sys.modules, request.param, FAKES[request.param](record))
    monkeypatch.setattr("tailprop.engine.config.check_tracker", lambda _name: None)
    return request.param, record


def test_a_resumed_run_continues_the_same_record(
    tracker: tuple[str, Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, record = tracker
    recipe, run = write_recipe(tmp_path / "small.yaml", run={"track": name, "track_project": "ours"}), tmp_path / "run"
    stop_and_resume(recipe, run, 7, monkeypatch)
    identity = json.loads((run / "tracking.json").read_text())[name]
    assert identity == {"trackio": "run-1", "wandb": "abc123", "mlflow": "f00"}[name]
    assert record.opened[0]["project"] == "ours"
    resumed = record.opened[-1]
    assert resumed.get("id", resumed.get("name")) == identity
    assert record.finished == 2
    steps = [(step, values["step/loss"]) for step, values in record.logged if "step/loss" in values]
    assert [step for step, _ in steps] == list(range(1, 23))
    assert [loss for _, loss in steps] == losses(run)
    assert [step for step, values in record.logged if "epoch/top1" in values] == [11, 22]
    config = record.params if name == "mlflow" else record.opened[0]["config"]
    assert config["model.name"] == "tailprop_pico"
    assert train(recipe, run, "--run.resume") == 0  # finished: nothing is opened for it
    assert record.finished == 2


def test_a_failing_tracker_does_not_stop_a_run(
    tracker: tuple[str, Recorder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, record = tracker
    record.fail_at = 3
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1}, run={"track": name})
    assert train(recipe, tmp_path / "run") == 0
    assert len(record.logged) == 3
    error = capsys.readouterr().err
    assert f"{name} failed (ConnectionError: the server is away); the run continues without it" in error
    assert error.count(f"{name} failed") == 1
    assert len(losses(tmp_path / "run")) == 11


def test_a_missing_tracker_is_refused_with_the_pip_command(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("wandb", "mlflow", "trackio"):
        assert_refused(["train", "digits", "--run.track", name], f"pip install {name}", capsys)


def test_only_rank_0_tracks(tmp_path: Path) -> None:
    """Under torchrun one record is opened; the module writes a line for each."""
    fake = tmp_path / "fake"
    fake.mkdir()
    opened = tmp_path / "opened"
    (fake / "wandb.py").write_text(
        "from types import SimpleNamespace\n"
        f"def init(**how):\n    open({str(opened)!r}, 'a').write('x')\n"
        "    return SimpleNamespace(id='a', log=lambda data, step: None, finish=lambda: None)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(fake)!r})\nimport tailprop_cli\nsys.exit(tailprop_cli.main())\n")
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1, "batch_size": 50}, run={"track": "wandb"})
    done = fork(["train", str(recipe), "--run.out", str(tmp_path / "run")], processes=2, script=script)
    assert done.returncode == 0, done.stderr
    assert opened.read_text() == "x"


def test_signal_and_budget_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop signal in the last evaluation of a budget is obeyed, and resuming closes the run."""
    recipe, run = write_recipe(tmp_path / "small.yaml"), tmp_path / "run"
    args = ["train", str(recipe), "--run.out", str(run), "--run.time-budget", "0.001s"]
    evaluate = Trainer._evaluate

    def stop(self: Trainer) -> dict[str, float]:
        self.stop_signal = signal.SIGTERM
        return evaluate(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_evaluate", stop)
        assert tailprop_cli.main(args) == 128 + signal.SIGTERM
    assert tailprop_cli.main([*args, "--run.resume"]) == 0
    assert epochs(run) == [pytest.approx(1 / 11, abs=1e-3)]
