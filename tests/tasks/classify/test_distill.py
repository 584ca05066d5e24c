"""Distillation: losses, the teacher's preprocessing, runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

import tailprop
import tailprop_cli
from tailprop.engine.config import ModelConfig
from tailprop.runtime.distributed import World
from tailprop.tasks.classify.augment import normalisation
from tailprop.tasks.classify.config import AugmentConfig, ClassifyConfig, DataConfig, DistillConfig
from tailprop.tasks.classify.distill import Distillation, create_distillation, logit_loss, similarity_loss
from tailprop.tasks.classify.load import ImageClassifier
from tests.helpers.runs import assert_refused, assert_same_run, fork, losses, stop_and_resume, write_recipe

CPU = torch.device("cpu")
ALONE = World(0, 1, CPU)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    recipe = write_recipe(folder / "small.yaml", optim={"epochs": 1}, model={"args": {"depths": [1, 1], "dims": [12, 20]}})
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(folder / "run")]) == 0
    return folder / "run"


def foreign(name: str = "test_resnet", num_classes: int = 3, size_px: int = 48, **how: Any) -> ImageClassifier:
    """A timm model as a teacher, with statistics and a size of its own."""
    model = timm.create_model(name, num_classes=num_classes, **how)
    settings = ClassifyConfig(
        model=ModelConfig(name, in_chans=how.get("in_chans", 3)), data=DataConfig(size_px=size_px), augment=AugmentConfig()
    )
    names = tuple("abcdefgh"[:num_classes])
    channels = settings.model.in_chans
    return ImageClassifier(model, settings, names, ((0.5,) * channels, (0.25,) * channels))


def distill(teacher: ImageClassifier, classes: str = "abc", in_chans: int = 3, **how: Any) -> Distillation:
    return Distillation(DistillConfig(teacher="it", **how), teacher, list(classes), in_chans, CPU)


def test_the_loss_is_that_of_timm() -> None:
    from timm.task.distillation import LogitDistillationTask

    student, other = (timm.create_model("test_resnet", num_classes=5).eval() for _ in range(2))
    x = torch.randn(4, 3, 32, 32)
    task = LogitDistillationTask(
        student, other, nn.CrossEntropyLoss(), task_loss_weight=0.5, temperature=3.0, device=CPU, verbose=False
    )
    found = task(x, torch.zeros(4, dtype=torch.long))
    task.teacher.eval()
    prepared = task.teacher.normalize_input(x, task.student_mean, task.student_std)
    assert torch.allclose(found["kd_loss"], logit_loss(student(x), other(prepared), 3.0), atol=1e-6)


def test_features_are_compared_by_their_similarities() -> None:
    x = torch.randn(6, 8)
    turned = x @ torch.linalg.qr(torch.randn(8, 8)).Q
    assert float(similarity_loss(x, turned)) < 1e-10  # another basis, or another scale, is the same
    assert float(similarity_loss(x, 3 * x)) < 1e-10
    assert float(similarity_loss(x, torch.randn(6, 20))) > 0.01  # of another width
    gram = x @ x.T
    other = torch.randn(6, 8)
    rows = gram / gram.norm(dim=1, keepdim=True) - (other @ other.T) / (other @ other.T).norm(dim=1, keepdim=True)
    assert torch.allclose(similarity_loss(x, other), rows.square().sum() / 6)


def test_the_teacher_sees_its_own_preprocessing() -> None:
    seen: list[torch.Tensor] = []
    other = foreign(size_px=64)
    other.model.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    pixels = torch.rand(2, 3, 1, 1).expand(2, 3, 32, 32)  # of one colour, so that resizing changes nothing
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in normalisation(3))
    student = timm.create_model("test_resnet", num_classes=3)
    distill(other).run(student, (pixels - mean) / std)
    assert seen[0].shape == (2, 3, 64, 64)
    expected = ((pixels - 0.5) / 0.25)[..., :1, :1].expand(2, 3, 64, 64)
    torch.testing.assert_close(seen[0], expected, atol=1e-5, rtol=0, check_stride=False)
    distill(other, size_px=40).run(student, pixels)
    assert seen[1].shape[-1] == 40


def test_gray_and_colour() -> None:
    gray = timm.create_model("test_resnet", num_classes=3, in_chans=1)
    loss = distill(foreign(), in_chans=1).run(gray, torch.randn(2, 1, 48, 48))[1]
    assert torch.isfinite(loss)
    with pytest.raises(ValueError, match="takes 4 channels"):
        distill(foreign(in_chans=4), in_chans=3)


def test_the_teacher_is_fixed() -> None:
    other = foreign(drop_path_rate=0.5)
    other.model.train()
    both = distill(other)
    before = {name: value.clone() for name, value in other.model.state_dict().items()}
    logits, loss = both.run(timm.create_model("test_resnet", num_classes=3), torch.randn(4, 3, 48, 48))
    (logits.sum() + loss).backward()
    assert not other.model.training
    assert all(p.grad is None for p in other.model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in other.model.state_dict().items())


def test_classes_are_matched_by_name() -> None:
    other = foreign(num_classes=4)
    student = timm.create_model("test_resnet", num_classes=3).eval()
    x = torch.randn(2, 3, 48, 48)
    both = distill(other, classes="cab", temperature=1.0)
    logits, loss = both.run(student, x)
    wanted = other.model(both._prepare(x))[:, [2, 0, 1]]
    assert torch.allclose(loss, logit_loss(logits, wanted, 1.0), atol=1e-6)
    with pytest.raises(ValueError, match=r"distill.teacher has other classes .*use --distill.kind features"):
        distill(other, classes="xyz")
    assert torch.isfinite(distill(other, classes="xyz", kind="features").run(student, x)[1])


@pytest.mark.parametrize("kind", ["logits", "features"])
def test_distilled_run_resumes_bit_for_bit(kind: str, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", distill={"teacher": str(teacher), "kind": kind})
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / "whole")]) == 0
    stop_and_resume(recipe, tmp_path / "stopped", 7, monkeypatch)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
    about = json.loads((tmp_path / "whole" / "manifest.json").read_text())["teacher"]
    assert about["from"] == str(teacher)
    assert len(about["weights_hash"]) == 16
    plain = write_recipe(tmp_path / "plain.yaml")
    assert tailprop_cli.main(["train", str(plain), "--run.out", str(tmp_path / "plain")]) == 0
    assert losses(tmp_path / "plain") != losses(tmp_path / "whole")
    tailprop.load(tmp_path / "whole" / "model.safetensors").predict(torch.rand(1, 32, 32))  # needs no teacher


def test_two_processes_distill_as_one(teacher: Path, tmp_path: Path) -> None:
    plain = {"mixup": 0.0, "cutmix": 0.0}
    recipe = write_recipe(
        tmp_path / "small.yaml", augment=plain, model={"drop_path": 0.0}, optim={"epochs": 1}, distill={"teacher": str(teacher)}
    )
    one = fork(["train", str(recipe), "--run.out", str(tmp_path / "one"), "--optim.batch-size", "80"])
    two = fork(["train", str(recipe), "--run.out", str(tmp_path / "two"), "--optim.batch-size", "40"], processes=2)
    assert (one.returncode, two.returncode) == (0, 0), two.stderr
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)


def test_another_teacher_is_another_run(teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 1}, distill={"teacher": str(teacher)})
    run = tmp_path / "run"
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(run)]) == 0
    assert_refused(
        ["train", str(run), "--run.resume", "--distill.teacher", str(run)], "was trained with another teacher", capsys
    )
    assert_refused(["train", str(run), "--run.resume", "--distill.kind", "features"], "other settings (distill.kind)", capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--distill.teacher", "nowhere"], "distill.teacher: nowhere does not exist"),
        (["--distill.teacher", "timm:resnet9999"], "timm has no model 'resnet9999'"),
        (["--distill.weight", "2"], "distill.weight must be between 0 and 1"),
        (["--distill.temperature", "0"], "distill.temperature must be positive"),
        (["--distill.size-px", "8"], "distill.size_px must be at least 32"),
        (["--distill.teacher", "x", "--distill.kind", "features", "--run.compile"], "leave out --run.compile"),
    ],
)
def test_wrong_settings_are_refused(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["train", "digits", "--data.workers", "0", *options], message, capsys)


def test_without_a_teacher_there_is_no_distillation() -> None:
    config = ClassifyConfig()
    assert create_distillation(config, ["a"], ALONE) is None
    assert replace(config, distill=DistillConfig()) == config
