"""Run folders: what a resumed run keeps and what it rejects."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tailprop_cli
from tailprop.engine.persistence import Persistence
from tailprop.engine.resume import LoopState
from tailprop.engine.run_folder import RunFolder
from tailprop.engine.run_settings import read_config, read_settings
from tailprop.engine.settings import build
from tailprop.engine.trainer import Trainer
from tailprop.runtime.distributed import World
from tailprop.tasks.classify import SPEC
from tailprop.tasks.classify.config import ClassifyConfig
from tailprop.tasks.classify.task import Classification
from tailprop.tasks.restore.config import RestoreConfig, RestoreDataConfig
from tests.helpers.folders import folder_recipe, make_folder
from tests.helpers.runs import (
    assert_refused,
    assert_same_run,
    last_row,
    losses,
    settings,
    stop_after,
    stop_and_resume,
    write_recipe,
)


def test_resume_needs_the_same_data_but_not_the_initial_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = folder_recipe(tmp_path, make_folder(tmp_path / "images"))
    assert tailprop_cli.main(args) == 0
    first = tmp_path / "first.safetensors"
    (tmp_path / "run" / "model.safetensors").rename(first)
    tuned = [*args[:-1], str(tmp_path / "tuned"), "--model.init", str(first)]
    assert tailprop_cli.main(tuned) == 0
    first.unlink()
    assert tailprop_cli.main([*tuned, "--run.resume"]) == 0
    (tmp_path / "images" / "train" / "red" / "0.jpg").rename(tmp_path / "images" / "train" / "blue" / "new.jpg")
    capsys.readouterr()
    assert tailprop_cli.main([*tuned, "--run.resume"]) == 2
    assert "the train data is not what" in capsys.readouterr().err


def test_run_folder_can_replace_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1})
    whole, stopped, moved = tmp_path / "whole", tmp_path / "stopped here", tmp_path / "moved"
    assert tailprop_cli.main(["train", str(recipe), "--optim.lr", "1e-3", "--run.out", str(whole)]) == 0
    stop_after(3, ["train", str(recipe), "--optim.lr", "1e-3", "--run.out", str(stopped), "--run.overwrite"], monkeypatch)
    assert capsys.readouterr().err.endswith(f"; resume with: tailprop train '{stopped}' --run.resume\n")
    stopped.rename(moved)
    assert_refused(["train", str(moved)], f"{moved} holds a run; resume it (--run.resume)", capsys)
    assert tailprop_cli.main(["train", str(moved), "--run.resume"]) == 0
    assert_same_run(moved, whole)
    assert not stopped.exists()
    capsys.readouterr()
    assert tailprop_cli.main(["train", str(moved), "--run.resume"]) == 0
    assert f"{moved}, already finished\n" in capsys.readouterr().out


def test_best_weights_without_last_checkpoint_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1}), tmp_path / "run"
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run)]) == 0
    (run / "last.pt").unlink()
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert_refused(["train", str(run), "--run.resume"], "last.pt is missing, so the run cannot resume", capsys)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_removed_export_is_written_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1}), tmp_path / "run"
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run)]) == 0
    before = load_file(run / "model.safetensors")
    (run / "model.safetensors").unlink()
    assert tailprop_cli.main(["train", str(run), "--run.resume"]) == 0
    after = load_file(run / "model.safetensors")
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert tailprop_cli.main(["eval", str(run)]) == 0  # it has its settings and class names again
    for name in ("model.safetensors", "best.pt"):
        (run / name).unlink()
    capsys.readouterr()
    assert tailprop_cli.main(["train", str(run), "--run.resume"]) == 0
    said = capsys.readouterr()
    assert "the best weights so far are lost" in said.err
    assert "model.safetensors" not in said.out


def test_run_finds_its_data_from_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "images")
    monkeypatch.chdir(tmp_path)
    assert tailprop_cli.main(folder_recipe(tmp_path, Path("images"))) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert tailprop_cli.main(["eval", "../run"]) == 0
    assert tailprop_cli.main(["train", "../run", "--run.resume"]) == 0


def test_data_paths_are_stored_as_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("images", "skip"):
        (tmp_path / name).mkdir()
    given = RestoreConfig(data=RestoreDataConfig(train=(Path("images"),), test=Path("images"), on_broken="skip"))
    folder = RunFolder(tmp_path / "run")
    folder.begin(given)
    kept = read_config(folder.path)["data"]
    assert (kept["train"], kept["test"]) == ([str(tmp_path / "images")], str(tmp_path / "images"))
    assert kept["on_broken"] == "skip"  # text that is not a path, although a folder has that name
    folder.check(replace(given, run=replace(given.run, resume=True)))  # the repeated command is the same run
    folder.release()


def test_log_of_another_program_is_not_truncated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("mine\n")
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1})
    assert_refused(["train", str(recipe), "--run.out", str(tmp_path / "run")], "holds a run", capsys)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == "mine\n"


def test_processes_with_different_data_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, world = build(ClassifyConfig, settings(run={"out": str(tmp_path / "run")})), World(0, 1, torch.device("cpu"))
    trainer = Trainer(SPEC, Classification(config, world), config, world)
    monkeypatch.setattr("tailprop.engine.trainer.all_gather", lambda value: [value, {"train": "other", "validation": "same"}])
    with pytest.raises(ValueError, match="not every process sees the same dataset"):
        trainer.run()


def test_invalid_settings_do_not_delete_the_old_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "is not the config.yaml of a tailprop run" in capsys.readouterr().err


def test_run_stopped_in_evaluation_resumes_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_manifest_keeps_the_first_launch_and_every_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, run = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1}), tmp_path / "run"
    stop_and_resume(recipe, run, 3, monkeypatch)
    manifest = json.loads((run / "manifest.json").read_text())
    assert [session["from_step"] for session in manifest["continued"]] == [3]
    assert {"command", "commit", "hardware", "torch", "processes"} <= manifest["continued"][0].keys() & manifest.keys()
    before = (run / "manifest.json").read_bytes()
    monkeypatch.setattr("sys.argv", ["tailprop", "again"])
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run), "--run.resume"]) == 0
    assert (run / "manifest.json").read_bytes() == before  # it was finished


def test_epoch_logged_but_not_saved_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["train", str(write_recipe(tmp_path / "small.yaml")), "--run.out", str(tmp_path / "run")]
    save = Persistence.save

    def die_after_the_epoch(self: Persistence, loop: LoopState, is_best: bool = False) -> None:
        if loop.history and loop.pending is None:
            raise SystemExit(9)
        save(self, loop, is_best)

    with monkeypatch.context() as patch:
        patch.setattr(Persistence, "save", die_after_the_epoch)
        with pytest.raises(SystemExit):
            tailprop_cli.main(command)
    assert last_row(tmp_path / "run")["kind"] == "epoch"
    assert tailprop_cli.main([*command, "--run.resume"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == [1, 2]


def test_process_with_another_checkpoint_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = build(ClassifyConfig, settings(run={"out": str(tmp_path)}))
    world = World(0, 1, torch.device("cpu"))
    monkeypatch.setattr("tailprop.engine.trainer.all_gather", lambda value: [value, 40] if isinstance(value, int) else [value])
    trainer = Trainer(SPEC, Classification(config, world), config, world)
    with pytest.raises(ValueError, match="a folder all nodes share"):
        trainer.run()


def test_checkpoint_without_config_resumes_with_the_same_settings_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1})
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert tailprop_cli.main(command) == 0
    (tmp_path / "run" / "config.yaml").unlink()
    assert_refused([*command, "--run.resume", "--optim.lr", "1"], "was trained with other settings", capsys)
    assert tailprop_cli.main([*command, "--run.resume"]) == 0
    divided = ["--optim.batch-size", "50", "--optim.grad-accum-steps", "2", "--data.workers", "1"]
    assert tailprop_cli.main([*command, *divided, "--run.resume"]) == 0
    assert (
        read_settings(tmp_path / "run" / "model.safetensors", ClassifyConfig).run.threads == 1
    )  # config.yaml is still that of the other program
    payload = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    torch.save(payload | {"format": 1}, tmp_path / "run" / "last.pt")
    assert_refused([*command, "--run.resume"], "not a checkpoint of this version of tailprop", capsys)


def test_incomplete_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1})
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert tailprop_cli.main(command) == 0
    for name in ("config.yaml", "last.pt", "best.pt"):
        (tmp_path / "run" / name).unlink()
    capsys.readouterr()
    assert tailprop_cli.main(command) == 2
    assert "holds a run" in capsys.readouterr().err
    holiday, old = tmp_path / "run" / "holiday.png", tmp_path / "run" / "confusion.png"
    holiday.write_bytes(b"")
    old.write_bytes(b"")
    assert tailprop_cli.main([*command, "--run.overwrite"]) == 0
    assert holiday.exists()
    assert old.stat().st_size > 0  # a file of the run, written again
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["processes"] == 1
