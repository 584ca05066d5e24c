"""Damage to the files of a run is noticed before they are used, and other files of the run replace the damaged one."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tailprop
import tailprop_cli
from tailprop.engine import checkpoint
from tailprop.engine.integrity import UNSEALED, check_all_finite, check_intact, is_intact, seal
from tailprop.engine.run_folder import RunFolder
from tailprop.engine.run_settings import read_metadata
from tailprop.engine.train_state import TrainState
from tailprop.engine.trainer import Trainer
from tests.helpers.runs import assert_refused, assert_same_run, stop_after, write_recipe


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests work on copies."""
    home = tmp_path_factory.mktemp("run")
    recipe = write_recipe(home / "small.yaml", run={"ema": 0.0})
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(home / "run")]) == 0
    return home / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def flip(path: Path, which: int = 0, bit: int = 4) -> None:
    """Flip a bit in the middle of a tensor of the weights. (A bit between two records of an archive would change nothing.)"""
    tensors = [value for value in checkpoint.read_state_dict(path).values() if value.numel() > 16]
    data, wanted = bytearray(path.read_bytes()), tensors[which].numpy().tobytes()
    data[data.index(wanted) + len(wanted) // 2] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["last.pt", "best.pt", "model.safetensors"])
@pytest.mark.parametrize("which", [0, 5, -1])
def test_flipped_bit_in_weights_is_refused(name: str, which: int, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_intact(run / name)
    flip(run / name, which)
    assert not is_intact(run / name)
    assert_refused(["eval", str(run / name)], f"{name} is corrupt (", capsys)


def test_every_reader_verifies_by_itself(tmp_path: Path) -> None:
    """Commands look for intact weights first; a function that is given a file does so, too."""
    state = {"x": torch.arange(1000.0)}
    checkpoint.save(tmp_path / "a.pt", {"model": state})
    checkpoint.save_tensors(tmp_path / "a.safetensors", state, {"classes": "cat"})
    for name, readers in (
        ("a.pt", [checkpoint.read_checkpoint]),
        ("a.safetensors", [checkpoint.read_checkpoint, read_metadata]),
    ):
        for reader in readers:
            reader(tmp_path / name)
        flip(tmp_path / name)
        for reader in readers:
            with pytest.raises(ValueError, match=f"{name} is corrupt"):
                reader(tmp_path / name)


def test_flipped_bit_in_a_class_name_is_refused(run: Path) -> None:
    """The hash covers the header, too: names, shapes, metadata."""
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"0\\n1\\n2", b"0\\n1\\n3"))
    with pytest.raises(ValueError, match="its SHA-256 does not match"):
        check_intact(path)


def test_truncated_and_foreign_files(run: Path, tmp_path: Path) -> None:
    data = (run / "model.safetensors").read_bytes()
    for count in (0, 5, 100, len(data) // 2, len(data) - 1):
        (tmp_path / "cut.safetensors").write_bytes(data[:count])
        with pytest.raises(ValueError, match=r"cut\.safetensors is (not a safetensors file|corrupt)"):
            check_intact(tmp_path / "cut.safetensors")
    save_file({"x": torch.ones(2)}, tmp_path / "foreign.safetensors")  # of another program: there is no hash
    check_intact(tmp_path / "foreign.safetensors")
    torch.save({"x": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)  # no zip archive
    check_intact(tmp_path / "old.pt")


def test_sealed_weights_are_read_by_other_programs(run: Path) -> None:
    path = run / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt"  # without it the transformers library refuses the file
    assert metadata["sha256"] != UNSEALED["sha256"]
    assert len(metadata["sha256"]) == 64
    model = timm.create_model("tailprop_pico", depths=[1, 1], dims=[8, 16], in_chans=1, num_classes=10)
    timm.models.load_checkpoint(model, str(path))
    assert all(torch.equal(value, load_file(path)[name]) for name, value in model.state_dict().items())


def test_seal_fills_a_place_of_the_header_only(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tricky = '"sha256":"' + "1" * 64 + '"'  # in a class name it is quoted, so it is not taken for the hash
    save_file({"x": torch.ones(2)}, path, {"classes": tricky, **UNSEALED})
    seal(path)
    check_intact(path)
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["classes"] == tricky


def test_corrupt_last_checkpoint_is_replaced_by_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run repeats the steps since then, and ends with the same weights."""
    recipe = write_recipe(tmp_path / "small.yaml")
    command = ["train", str(recipe), "--run.out"]
    assert tailprop_cli.main([*command, str(tmp_path / "whole")]) == 0
    stop_after(15, [*command, str(tmp_path / "hit")], monkeypatch)  # in the second epoch
    flip(tmp_path / "hit" / "last.pt")
    capsys.readouterr()
    assert tailprop_cli.main([*command, str(tmp_path / "hit"), "--run.resume"]) == 0
    out, err = capsys.readouterr()
    assert "resumed from step 11" in out
    assert err.count("\n") == 1
    assert "last.pt is corrupt" in err
    assert f"resuming from {tmp_path / 'hit' / 'best.pt'}" in err
    assert_same_run(tmp_path / "hit", tmp_path / "whole")


def test_run_without_an_intact_checkpoint_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("last.pt", "best.pt"):
        flip(run / name)
    message = "and best.pt is missing or corrupt; start a new run from model.safetensors with --model.init"
    assert_refused(["train", str(run), "--run.resume"], message, capsys)


def test_corrupt_export_is_replaced_by_the_best_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = torch.rand(1, 32, 32)
    expected, classes = tailprop.load(run).predict(image), tailprop.load(run).names
    weights = {name: value.clone() for name, value in load_file(run / "model.safetensors").items()}  # it is a view of the file
    flip(run / "model.safetensors")
    loaded = tailprop.load(run)
    assert "reading best.pt instead, the same weights" in capsys.readouterr().err
    assert torch.equal(loaded.predict(image).probabilities, expected.probabilities)
    assert loaded.names == classes
    assert tailprop_cli.main(["train", str(run), "--run.resume"]) == 0  # finished, but it exports the weights again
    assert "model.safetensors is corrupt: it is exported again" in capsys.readouterr().err
    again = load_file(run / "model.safetensors")
    assert all(torch.equal(again[name], value) for name, value in weights.items())


def test_class_names_come_from_the_checkpoint_if_the_export_is_corrupt(run: Path) -> None:
    payload = checkpoint.load(run / "best.pt")
    assert payload["metadata"]["classes"] == "\n".join(map(str, range(10)))
    checkpoint.save(run / "best.pt", payload | {"metadata": {**payload["metadata"], "classes": "\n".join("abcdefghij")}})
    flip(run / "model.safetensors")
    assert tailprop.load(run).names == tuple("abcdefghij")


def test_loading_weights_downloads_nothing(run: Path, tmp_path: Path) -> None:
    """The settings inside weights cannot ask for others: not for pretrained ones, and not for a file to start from."""
    path = tmp_path / "foreign.safetensors"
    with safe_open(run / "model.safetensors", framework="pt") as file:
        settings = json.loads(file.metadata()["settings"])
    settings["model"] |= {"init": "/nowhere.pt", "args": settings["model"]["args"] | {"pretrained": True}}
    save_file(load_file(run / "model.safetensors"), path, {"settings": json.dumps(settings)})
    assert len(tailprop.load(path).predict(torch.rand(1, 32, 32)).probabilities) == 10


def test_changed_config_is_noticed_and_may_be_meant(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "config.yaml"
    changed = path.read_text().replace("threads: 1", "threads: 3")
    path.write_text(changed)
    for command in (["train", str(run), "--run.resume"], ["eval", str(run)]):
        assert_refused(command, "config.yaml does not match the checksum in its last line", capsys)
    path.write_text("".join(changed.splitlines(keepends=True)[:-1]))  # as the message says
    assert tailprop_cli.main(["train", str(run), "--run.resume"]) == 0


@pytest.mark.parametrize("spoilt", [b"\xff\xfe not text\n", b"[" * 100_000 + b"\n", b'{"step": "x"}\n', b"null\n"])
def test_corrupt_log_is_set_aside(spoilt: bytes, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + spoilt + b"".join(lines[1:]))
    assert tailprop_cli.main(["train", str(run), "--run.resume"]) == 0
    assert "metrics.jsonl is corrupt: it was copied to metrics.jsonl.corrupt" in capsys.readouterr().err
    assert path.read_bytes() == b"".join(lines)
    assert spoilt in (run / "metrics.jsonl.corrupt").read_bytes()


def test_changed_digit_in_the_log_is_noticed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(run)
    rows = folder.read_log()
    assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == [1, 2]
    place = folder.metrics.read_bytes().index(b'"loss": ') + 10
    changed = bytearray(folder.metrics.read_bytes())
    changed[place] ^= 1  # another digit
    folder.metrics.write_bytes(changed)
    with pytest.raises(ValueError, match=r"metrics\.jsonl is corrupt: 1 line cannot be read"):
        folder.read_log()
    assert tailprop_cli.main(["train", str(run), "--run.resume"]) == 0
    assert "metrics.jsonl is corrupt" in capsys.readouterr().err
    assert folder.read_log() == rows[1:]


@pytest.mark.parametrize("change", [b"\xff", b"[" * 100_000, b'{"continued": 5}', b"[1]", b"null"])
def test_corrupt_manifest_is_set_aside(
    change: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1})
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    stop_after(3, command, monkeypatch)
    (tmp_path / "run" / "manifest.json").write_bytes(change)
    assert tailprop_cli.main([*command, "--run.resume"]) == 0
    assert "manifest.json is corrupt: it was copied to manifest.json.corrupt" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["continued"][0]["from_step"] == 3


def test_changed_number_in_the_manifest_is_noticed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "manifest.json"
    assert RunFolder(run).read_manifest()["processes"] == 1
    path.write_text(path.read_text().replace('"processes": 1', '"processes": 3'))
    assert RunFolder(run).read_manifest() == {}
    assert "manifest.json is corrupt" in capsys.readouterr().err


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nothing_that_is_not_finite_is_saved(value: float, tmp_path: Path) -> None:
    bad = torch.ones(4)
    bad[2] = value
    for state in ({"model": {"a": torch.ones(2), "b": bad}}, {"optimizer": {"state": {3: {"exp_avg": [bad]}}}}):
        with pytest.raises(ValueError, match=r"^(model\.b|optimizer\.state\.3\.exp_avg\.0) is not finite$"):
            checkpoint.save(tmp_path / "last.pt", state)
    with pytest.raises(ValueError, match=r"^b is not finite$"):
        checkpoint.save_tensors(tmp_path / "w.safetensors", {"a": torch.ones(2), "b": bad}, {})
    assert not list(tmp_path.iterdir())
    check_all_finite({"a": torch.zeros(0), "b": torch.tensor([2**31]), "c": torch.ones(2, dtype=torch.bfloat16), "d": None})


def corrupt_at(number: int, spoil: Callable[[TrainState], torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """A step after which a tensor is NaN. The loss is computed before the step, so it is finite."""
    step = TrainState.step

    def corrupt(self: TrainState, task: Any, batches: list[Any], lr: float, done: int) -> torch.Tensor:
        loss = step(self, task, batches, lr, done)
        if done == number:
            with torch.no_grad():
                spoil(self).fill_(float("nan"))
        return loss

    monkeypatch.setattr(TrainState, "step", corrupt)


def a_weight(state: TrainState) -> torch.Tensor:
    return next(iter(state.model.parameters()))


def a_moment(state: TrainState) -> torch.Tensor:
    return next(iter(state.optimizer.state.values()))["exp_avg"]


def test_diverged_weights_stop_the_run_and_earlier_checkpoints_are_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", run={"ema": 0.0})
    corrupt_at(6, a_weight, monkeypatch)
    assert_refused(
        ["train", str(recipe), "--run.out", str(tmp_path / "run")],
        "is not finite after step 6; earlier checkpoints are intact",
        capsys,
    )
    payload = checkpoint.load(tmp_path / "run" / "last.pt")
    assert payload["position"]["global_step"] == 4
    check_all_finite(payload)


def test_divergence_before_the_first_checkpoint_promises_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", run={"ema": 0.0, "save_every": 1})
    corrupt_at(1, a_weight, monkeypatch)
    message = (
        "is not finite after step 1; there is no checkpoint yet: restart the run (--run.overwrite) with a lower --optim.lr"
    )
    assert_refused(["train", str(recipe), "--run.out", str(tmp_path / "run")], message, capsys)


def test_finite_weights_are_not_exported_with_an_optimizer_that_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Export and checkpoint belong together: neither is replaced."""
    recipe = write_recipe(tmp_path / "small.yaml", run={"ema": 0.0})
    exported: list[bytes] = []

    def evaluate(self: Trainer) -> dict[str, float]:  # better after every epoch
        exported.extend(path.read_bytes() for path in tmp_path.glob("run/model.safetensors"))
        return {"top1": float(self.loop.epoch)}

    monkeypatch.setattr(Trainer, "_evaluate", evaluate)
    corrupt_at(22, a_moment, monkeypatch)  # the last step of the second epoch
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert_refused(command, "is not finite after step 22; earlier checkpoints are intact", capsys)
    assert exported == [(tmp_path / "run" / "model.safetensors").read_bytes()]


def test_epoch_without_a_finite_metric_is_never_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", run={"ema": 0.0})
    monkeypatch.setattr(Trainer, "_evaluate", lambda _: {"top1": float("nan")})
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / "run")]) == 0
    assert "no epoch has a finite top1, so no weights were exported" in capsys.readouterr().out
    assert not {"best.pt", "model.safetensors"} & {path.name for path in (tmp_path / "run").iterdir()}


def test_checkpoint_with_other_contents_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    payload = checkpoint.load(run / "last.pt")
    for change in ({"position": {"loss_sum": 1}}, {"rng": [7]}, {"position": 3}, {"model": [1]}):
        checkpoint.save(run / "last.pt", payload | change)
        assert_refused(["train", str(run), "--run.resume"], "last.pt is not a checkpoint of this run", capsys)


@pytest.mark.parametrize("name", ["last.pt", "best.pt", "model.safetensors", "metrics.jsonl", "manifest.json", ".lock"])
def test_pipe_in_a_run_folder_is_refused(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Opening it would wait for someone to write into it. A run folder may come from elsewhere."""
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    signal.alarm(60)  # a hang ends the tests
    assert_refused(["train", str(run), "--run.resume"], f"{name} is not a file", capsys)
    assert not is_intact(run / name)
    assert tailprop.load(run).names == tuple("0123456789")
    signal.alarm(0)


@pytest.mark.parametrize("name", ["metrics.jsonl", "manifest.json", "learning.png", ".lock"])
def test_planted_link_is_not_written_through(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = write_recipe(tmp_path / "small.yaml"), tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(tmp_path / "elsewhere")
    message = f"{name} is a link to {tmp_path / 'elsewhere'}, which does not exist; remove the link"
    assert_refused(["train", str(recipe), "--run.out", str(run)], message, capsys)
    assert not (tmp_path / "elsewhere").exists()


def test_corrupt_log_is_not_copied_through_a_link(run: Path, tmp_path: Path) -> None:
    (run / "metrics.jsonl.corrupt").symlink_to(tmp_path / "elsewhere")
    (run / "metrics.jsonl").write_text("spoilt\n")
    assert tailprop_cli.main(["train", str(run), "--run.resume"]) == 0
    assert (run / "metrics.jsonl.corrupt").read_text() == "spoilt\n"
    assert not (tmp_path / "elsewhere").exists()


def test_results_do_not_replace_files_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("model.safetensors", "best.pt", "config.yaml", "metrics.jsonl"):
        before = (run / name).read_bytes()
        assert_refused(["eval", str(run), "--out", str(run / name)], f"{name} would be replaced", capsys)
        assert (run / name).read_bytes() == before
