"""The engine end to end on small datasets: broken images, failures, the parquet recipe."""

import json
import os
import pickle
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from PIL import Image

import tailprop_cli
from tailprop.engine import checkpoint
from tailprop.engine.run_folder import RunFolder
from tailprop.tasks.classify.load import load_classifier
from tailprop.utils.files import write_atomically
from tests.helpers.folders import folder_recipe, jpeg, make_folder, make_snapshot
from tests.helpers.runs import assert_refused, fork, launch, write_recipe


def test_own_images_from_a_checkpoint_with_another_class_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = folder_recipe(tmp_path, make_folder(tmp_path / "images"))
    assert tailprop_cli.main(args) == 0
    run = tmp_path / "run"
    names = {path.name for path in run.iterdir()}
    wanted = {
        "config.yaml",
        "manifest.json",
        "metrics.jsonl",
        "last.pt",
        "best.pt",
        "model.safetensors",
        "learning.png",
        "history.csv",
    }
    assert wanted <= names
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["examples"] == {"train": 16, "validation": 16}
    assert {"command", "torch", "hardware", "commit", "config_hash", "split_hash", "parameters", "macs"} <= manifest.keys()

    shutil.copy(run / "model.safetensors", tmp_path / "far.safetensors")  # exported weights are self-contained
    near, far = load_classifier(str(run)), load_classifier(str(tmp_path / "far.safetensors"))
    assert (far.names, far.settings.data.size_px, far.settings.augment) == (
        near.names,
        near.settings.data.size_px,
        near.settings.augment,
    )
    assert far.settings.data.root is None

    three = tmp_path / "three"
    for split in ("train", "val"):
        (make_folder(three, splits=(split,)) / split / "green").mkdir()
        for k in range(4):
            (three / split / "green" / f"{k}.jpg").write_bytes(jpeg(0))
    capsys.readouterr()
    tuned = folder_recipe(tmp_path, three)
    assert tailprop_cli.main([*tuned[:-1], str(tmp_path / "tuned"), "--model.init", str(run)]) == 0
    assert "head.fc.weight" in capsys.readouterr().out  # the classifier does not fit, which is reported
    state = torch.load(tmp_path / "tuned" / "best.pt", weights_only=True)
    assert state["model"]["head.fc.weight"].shape[0] == 3

    model = timm.create_model(
        "tailprop_pico",
        pretrained=True,
        num_classes=3,
        depths=(1, 1),
        dims=(8, 16),
        pretrained_cfg_overlay=dict(file=str(tmp_path / "tuned" / "model.safetensors"), num_classes=3),
    )
    torch.testing.assert_close(model.head.fc.weight, state["ema"]["head.fc.weight"])


@pytest.mark.parametrize("workers", [0, 1])
def test_broken_images(workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_folder(tmp_path / "images")
    (root / "train" / "red" / "3.jpg").write_bytes(b"not an image")
    (root / "val" / "blue" / "1.jpg").write_bytes(jpeg(9)[:300])
    args = [*folder_recipe(tmp_path, root), "--data.workers", str(workers)]
    assert tailprop_cli.main(args) == 2
    assert "train/red/3.jpg: not an image; fix or remove it" in capsys.readouterr().err
    assert tailprop_cli.main([*args, "--data.on-broken", "skip", "--run.overwrite"]) == 0
    assert "2 broken images skipped" in capsys.readouterr().out
    payload = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert set(payload["broken"]) == {"train/red/3.jpg", "val/blue/1.jpg"}
    assert (
        tailprop_cli.main(["eval", str(tmp_path / "run"), "--data.on-broken", "skip", "--out", str(tmp_path / "e.json")]) == 0
    )
    assert json.loads((tmp_path / "e.json").read_text())["count"] == 15
    printed = capsys.readouterr()
    assert printed.err.count("skipped val/blue/1.jpg: ") == 1
    assert "1 broken image skipped" in printed.out


def test_file_names_with_any_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file name that is not UTF-8, class names that look like formulas or markup, more outputs than classes."""
    root = make_folder(tmp_path / "images")
    (root / "train" / "red" / "1.jpg").rename(Path(os.fsdecode(os.fsencode(root) + b"/train/red/M\xfcller.jpg")))
    for split in ("train", "val"):
        (root / split / "red").rename(root / split / "a $_$ [b]")
    args = [*folder_recipe(tmp_path, root, num_classes=4)]
    assert tailprop_cli.main(args) == 0
    assert "could not draw the figures" not in capsys.readouterr().err
    assert tailprop_cli.main(["eval", str(tmp_path / "run")]) == 0
    assert load_classifier(str(tmp_path / "run")).names == ("a $_$ [b]", "blue", "2", "3")


def test_eval_uses_all_images_of_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one_tree = make_folder(tmp_path / "images") / "train"
    assert tailprop_cli.main(folder_recipe(tmp_path, one_tree, held_out=0.5)) == 0
    out, command = tmp_path / "e.json", ["eval", str(tmp_path / "run"), "--out", str(tmp_path / "e.json")]
    assert tailprop_cli.main(command) == 0
    held_out = json.loads(out.read_text())["count"]
    assert 0 < held_out < 16
    assert "about 50% of its images were evaluated, those held out of training" in capsys.readouterr().out
    assert tailprop_cli.main([*command, "--split", "train"]) == 0
    assert "about 50% of its images were evaluated, those of training" in capsys.readouterr().out
    assert tailprop_cli.main([*command, "--data.held-out", "0.3"]) == 0
    assert "training held out 50%, so some of them may be training images" in capsys.readouterr().out
    other = make_folder(tmp_path / "other", count=3, splits=("all",)) / "all"
    assert tailprop_cli.main([*command, "--data.root", str(other)]) == 0
    assert json.loads(out.read_text())["count"] == 6
    assert "all of its images were evaluated" in capsys.readouterr().out


def test_pretrained_model_keeps_its_preprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    create, name = timm.create_model, "vit_tiny_patch16_224"  # normalised with mean 0.5, unlike our models

    def without_download(name: str, pretrained: bool = False, **_: object) -> torch.nn.Module:
        assert pretrained
        return create(name)

    monkeypatch.setattr(timm, "create_model", without_download)
    classifier = load_classifier(name)
    gray = classifier.transform()(Image.new("RGB", (300, 240), (255, 255, 255)))
    torch.testing.assert_close(gray, torch.ones(3, 224, 224))


def test_failures_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = folder_recipe(tmp_path, make_folder(tmp_path / "images"))
    wrong = [*args, "--data.num-classes", "1"]
    assert_refused(wrong, "label 1 of train/red/0.jpg (train) is not a valid class index from 0 to 0", capsys)
    assert_refused([*args, "--optim.lr", "1e30", "--optim.epochs", "3"], "there is no checkpoint yet", capsys)
    inside = ["--run.out", str(tmp_path / "images" / "train" / "red" / "0.jpg" / "run")]
    assert_refused([*args, *inside], "(Not a directory); change --run.out", capsys)
    assert tailprop_cli.main([*args, "--run.overwrite"]) == 0
    capsys.readouterr()
    before = files_of(tmp_path / "run")
    assert_refused([*wrong, "--run.overwrite"], "is not a valid class index from 0 to 0", capsys)
    assert_refused([*args, "--run.overwrite", "--data.root", str(tmp_path / "nowhere")], "no folder", capsys)
    assert files_of(tmp_path / "run") == before


@pytest.mark.parametrize("option", ["--out", "--confusion"])
def test_eval_checks_output_paths_first(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for path, message in ((tmp_path, "is a folder; name a file"), (tmp_path / "file" / "e.json", "is a file; name a folder")):
        assert tailprop_cli.main(["eval", "no checkpoint", option, str(path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"tailprop: {option}")
        assert message in error


def test_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    checkpoint.save(path, {"model": {"w": torch.ones(10)}})
    before = path.read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))  # limits the file size of this process, like a full disk
    try:
        with pytest.raises(OSError, match=r"cannot write .*last.pt .*files saved before are intact"):
            checkpoint.save(path, {"model": {"w": torch.ones(1_000_000)}}, also=tmp_path / "best.pt")
        with pytest.raises(OSError, match=r"cannot write .*model.safetensors"):
            checkpoint.save_weights(tmp_path / "model.safetensors", torch.nn.Linear(1000, 1000), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert path.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"last.pt"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_full_disk_while_logging_is_reported(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(
        OSError, match=r"cannot write .*metrics.jsonl \(No space left on device\); .*free some disk space and try again"
    ):
        RunFolder(tmp_path).log({"step": 1})


def test_out_of_memory_while_saving_is_not_a_disk_error(tmp_path: Path) -> None:
    def write(_: Path) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    with pytest.raises(torch.OutOfMemoryError):
        write_atomically(tmp_path / "x.pt", write)


def test_run_on_a_full_disk_stops_in_one_line_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, run = write_recipe(tmp_path / "small.yaml"), tmp_path / "run"
    limit, save = resource.getrlimit(resource.RLIMIT_FSIZE), checkpoint.save

    def fill_the_disk(path: Path, payload: dict[str, Any], also: Path | None = None) -> None:
        save(path, payload, also)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size // 2, limit[1]))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", fill_the_disk)
        try:
            assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run)]) == 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    error = capsys.readouterr().err
    assert "last.pt" in error
    assert "files saved before are intact; free some disk space and try again" in error
    assert error.count("\n") == 1
    assert checkpoint.load(run / "last.pt")["position"]["global_step"] == 2
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run), "--run.resume"]) == 0


def test_warm_up_longer_than_the_run_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", str(write_recipe(tmp_path / "small.yaml")), "--run.out", str(tmp_path / "run"), "--optim.epochs", "1"]
    assert tailprop_cli.main([*command, "--optim.warmup-epochs", "3"]) == 0
    assert "the learning rate ends at 33 % of its peak" in capsys.readouterr().err
    assert tailprop_cli.main([*command, "--optim.warmup-epochs", "0.5", "--run.overwrite"]) == 0
    assert "of its peak" not in capsys.readouterr().err


def test_exported_weights_have_default_permissions(tmp_path: Path) -> None:
    checkpoint.save_weights(tmp_path / "model.safetensors", torch.nn.Linear(2, 2), {})
    (tmp_path / "other").write_text("")
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_write_through_a_symlink(tmp_path: Path) -> None:
    real, link = tmp_path / "disk" / "last.pt", tmp_path / "run" / "last.pt"
    for path in (real, link):
        path.parent.mkdir()
    link.symlink_to(real)
    for content in ("old", "new"):  # at first the link is dangling
        write_atomically(link, lambda part, content=content: part.write_text(content), follow=True)
        assert (link.is_symlink(), real.read_text()) == (True, content)
    (tmp_path / "run" / "best.pt").symlink_to(tmp_path / "disk" / "best.pt")
    checkpoint.save(link, {"model": {}}, also=tmp_path / "run" / "best.pt")
    assert {path.name for path in real.parent.iterdir()} == {"last.pt", "best.pt"}
    assert all(path.is_symlink() for path in link.parent.iterdir())


def test_write_to_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        checkpoint.save_weights(pipe, torch.nn.Linear(2, 2), {})
        content = os.read(reader, 10_000)
    finally:
        os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert pipe.is_fifo()
    assert safetensors.torch.load(content)["weight"].shape == (2, 2)
    with pytest.raises(OSError, match=r"cannot write .* \(Is a directory\)"):
        checkpoint.save_weights(tmp_path, torch.nn.Linear(2, 2), {})


class Malicious:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.proof),)


def test_malicious_checkpoints_are_not_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof, path = tmp_path / "executed", tmp_path / "model.pt"
    torch.save({"model": {"w": torch.ones(1)}, "extra": Malicious(proof)}, path)
    raw = tmp_path / "raw.pt"
    raw.write_bytes(pickle.dumps({"model": Malicious(proof)}))
    recipe = write_recipe(tmp_path / "r.yaml")
    for command, reason in (
        (["eval", str(path), "--model", "tailprop_pico"], f"it imports {os.name}.mkdir"),
        (["eval", str(raw), "--model", "tailprop_pico"], "not a pickle of weights"),
        (["train", str(recipe), "--model.init", str(path), "--run.out", str(tmp_path / "run")], f"it imports {os.name}.mkdir"),
    ):
        assert tailprop_cli.main(command) == 2
        error = capsys.readouterr().err
        assert f"was not executed ({reason}" in error
        assert "weights_only" not in error  # PyTorch's advice to execute it is removed
        assert error.count("\n") == 1
    run = tmp_path / "resumed"
    run.mkdir()
    (run / "last.pt").write_bytes(path.read_bytes())
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run), "--run.resume"]) == 2
    assert "was not executed" in capsys.readouterr().err
    assert not proof.exists()


def test_data_root_one_level_too_high(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path / "above" / "images", splits=("all",))
    args = folder_recipe(tmp_path, tmp_path / "above" / "images")
    assert_refused(args, "the dataset has a single class, all", capsys)


def test_run_stopped_by_a_broken_image_resumes_without_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = make_folder(tmp_path / "images")
    (images / "val" / "red" / "3.jpg").write_text("not an image")
    args = [*folder_recipe(tmp_path, images), "--data.on-broken"]
    assert_refused([*args, "stop"], "3.jpg: not an image; fix or remove it, or skip it", capsys)
    assert tailprop_cli.main([*args, "skip", "--run.resume"]) == 0
    assert "2 classes (blue, red); images: 16 train, 16 validation" in capsys.readouterr().out


def test_corrupt_snapshots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_snapshot(tmp_path / "data", {"train": [0, 1] * 4, "validation": [0, 1]}, classes=2)
    recipe = write_recipe(
        tmp_path / "r.yaml",
        model={"in_chans": 3},
        data={"source": "parquet", "root": str(root), "cache_dir": str(tmp_path / "cache")},
        optim={"batch_size": 4},
    )
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert tailprop_cli.main(command) == 0
    capsys.readouterr()
    before, shard = files_of(tmp_path / "run"), root / "train-00001-of-00002.parquet"
    for option in ("--run.overwrite", "--run.resume"):
        make_snapshot(root, {"train": [0, 1] * 4}, classes=2)
        shard.write_bytes(shard.read_bytes()[:-200])
        assert_refused([*command, option], "train-00001-of-00002.parquet is corrupt", capsys)
        shard.unlink()
        assert_refused([*command, option], "has 1 of 2 train shards", capsys)
        make_snapshot(root, {"train": [0, 1, 7, 1]}, classes=2)
        assert_refused([*command, option], "label 7 of", capsys)
    assert files_of(tmp_path / "run") == before


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_imagenet_recipe_end_to_end_on_one_and_two_processes(tmp_path: Path) -> None:
    """The paper's recipe on a folder like ImageNet: 1000 classes, few images, a narrow network."""
    labels = list(range(0, 1000, 125))
    root = make_snapshot(tmp_path / "data", {"train": labels * 2, "validation": [999, 0, 5]})
    small = ["--data.root", str(root), "--data.cache", str(tmp_path / "cache"), "--model.name", "tailprop_pico"]
    small += ["--optim.epochs", "1", "--data.workers", "1", "--run.device", "cpu"]
    one = fork(["train", "imagenet1k_tiny", *small, "--optim.batch-size", "8", "--run.out", str(tmp_path / "one")])
    assert one.returncode == 0, one.stderr
    two = launch(
        ["train", "imagenet1k_tiny", *small, "--optim.batch-size", "4", "--run.out", str(tmp_path / "two")], processes=2
    )
    assert two.returncode == 0, two.stderr
    assert "the paper" not in one.stdout  # its result is for tailprop_tiny
    for name, processes in (("one", 1), ("two", 2)):
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        assert (manifest["classes"], manifest["examples"]["validation"], manifest["processes"]) == (1000, 3, processes)
        weights = torch.load(tmp_path / name / "last.pt", weights_only=True)["model"]
        assert weights["head.fc.weight"].shape[0] == 1000


def test_non_finite_gradient_never_reaches_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "r.yaml", run={"save_every": 1})
    clip, calls = torch.nn.utils.clip_grad_norm_, []

    def spoil(parameters: list[torch.nn.Parameter], limit: float) -> torch.Tensor:
        calls.append(1)
        parameters = list(parameters)
        if len(calls) == 4:
            parameters[0].grad[:] = float("nan")
        return clip(parameters, limit)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spoil)
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert tailprop_cli.main(command) == 2
    assert "the loss or its gradient became nan in epoch 1, step 4" in capsys.readouterr().err
    payload = checkpoint.load(tmp_path / "run" / "last.pt")
    assert payload["position"]["global_step"] == 3
    assert all(value.isfinite().all() for value in payload["model"].values())
    monkeypatch.undo()
    assert tailprop_cli.main([*command, "--run.resume", "--run.threads", "1"]) == 0
