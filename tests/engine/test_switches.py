"""Options of a run, and its output at the end."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tailprop_cli
from tailprop.engine.settings import build
from tailprop.engine.trainer import steps_within
from tailprop.runtime.distributed import World
from tailprop.tasks.classify.config import ClassifyConfig
from tailprop.tasks.classify.metrics import Accuracy
from tailprop.tasks.classify.task import Classification
from tests.helpers.runs import assert_refused, losses, settings, write_recipe


def trained(tmp_path: Path, name: str, *extra: str, epochs: int = 1, **changes: dict[str, Any]) -> dict[str, Tensor]:
    recipe = write_recipe(tmp_path / f"{name}.yaml", optim={"epochs": epochs, "batch_size": 200}, **changes)
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / name), *extra]) == 0
    return torch.load(tmp_path / name / "last.pt", weights_only=True)["model"]


def test_memory_options_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    again = torch.utils.checkpoint.checkpoint
    monkeypatch.setattr("torch.utils.checkpoint.checkpoint", lambda *args, **how: calls.append(1) or again(*args, **how))
    plain = trained(tmp_path, "plain")
    assert not calls
    saved = trained(tmp_path, "saved", "--run.grad-checkpointing", "--run.check-gradients")
    assert calls
    assert all(torch.equal(saved[name], value) for name, value in plain.items())


def test_non_finite_gradient_stops_the_run_if_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Classification, "loss", infinite_gradient)
    recipe = write_recipe(tmp_path / "r.yaml", optim={"epochs": 1}, run={"check_gradients": True})
    command = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert_refused(command, "a gradient is not finite in epoch 1, step 1; lower --optim.lr", capsys)


def test_compile_for_each_training_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[torch.Size] = []

    def eager(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:  # compiling C++ would take a minute
        sizes.extend(x.shape[-2:] for x in inputs if isinstance(x, Tensor) and x.shape[1:-2] == (1,) and len(x) == 200)
        assert not any(isinstance(x, torch.SymInt) for x in inputs)  # a dynamic size, which inductor cannot train
        return graph

    whole = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: whole(self, backend=eager, **options))
    straight: dict[str, Any] = {"drop_path": 0.0}  # a captured graph draws other random numbers for drop path
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
    assert losses(tmp_path / precision) != losses(tmp_path / "fp32")
    scale = torch.load(tmp_path / precision / "last.pt", weights_only=True)["scaler"].get("scale")
    assert scale == (2.0**16 if precision == "fp16" else None)


def test_persistent_fp16_overflow_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Classification, "loss", infinite_gradient)
    recipe = write_recipe(tmp_path / "r.yaml", optim={"epochs": 3}, run={"precision": "fp16"})
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / "run")]) == 2
    assert "gradients overflow FP16" in capsys.readouterr().err


def infinite_gradient(task: Classification, model: nn.Module, batch: Any) -> Tensor:
    """A finite loss with an infinite gradient."""
    return (0 * model(task.augment(batch.images, batch.seeds)).mean()).abs().sqrt()


def test_paper_result_is_shown_for_its_own_model_only() -> None:
    def summary(name: str, classes: int) -> str:
        values = settings(model={"name": name}, data={"num_classes": classes}) | {"paper_top1": {"tailprop_tiny": 82.9}}
        task = Classification(build(ClassifyConfig, values), World(0, 1, torch.device("cpu")))
        return task.summary({"top1": 50.0, "top5": 80.0})

    assert summary("tailprop_tiny", 1000) == "top-1 50.00 (the paper, on ImageNet-1K: 82.9), top-5 80.00"
    assert summary("tailprop_tiny", 10) == summary("tailprop_pico", 1000) == "top-1 50.00, top-5 80.00"


def accuracy(count: int) -> Accuracy:
    return Accuracy(float(count), 100.0, 0.1, count, torch.zeros(count, 3, dtype=torch.int64), torch.ones(count), 10)


def test_confusion_plot_is_of_the_exported_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [accuracy(n) for n in (60, 90, 80)]
    drawn: list[int] = []
    monkeypatch.setattr("tailprop.tasks.classify.task.evaluate_classifier", lambda *_, **__: results.pop(0))
    monkeypatch.setattr("tailprop.tasks.classify.task.draw_confusion", lambda counts, *_: drawn.append(int(counts[0, 0])))
    recipe = write_recipe(tmp_path / "small.yaml", optim={"epochs": 3, "batch_size": 400})
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / "run")]) == 0
    assert drawn == [90]
    task = Classification(build(ClassifyConfig, settings()), World(0, 1, torch.device("cpu")))
    task.best = accuracy(80)  # the best since the run was resumed
    task.draw([{"epoch": n, "loss": 1.0, "top1": top1} for n, top1 in enumerate((90.0, 80.0), start=1)], tmp_path)
    assert drawn == [90]
    assert "the best epoch was before the run was resumed" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, 10), (0.1, 10), (1.0, 5), (3.0, 1), (60.0, 1)])
def test_gpu_with_long_steps_is_synchronized_more_often(seconds: float, steps: int) -> None:
    assert steps_within(seconds) == steps
