"""Muon: orthogonal steps for matrices, AdamW for the rest."""

from pathlib import Path

import pytest
import torch
from torch import nn

import tailprop_cli
from tailprop.engine.config import ModelConfig, OptimConfig
from tailprop.engine.muon import Muon, is_matrix, orthogonalise
from tailprop.engine.optim import build_optimizer
from tailprop.tasks.detect.config import DetectorConfig
from tailprop.tasks.detect.model import create_detector
from tailprop.tasks.segment.config import SegmenterConfig
from tailprop.tasks.segment.model import create_segmenter
from tests.backbone.test_model import tiny_net
from tests.helpers.runs import assert_same_run, stop_and_resume, write_recipe


@pytest.mark.parametrize("shape", [(16, 16), (16, 40), (33, 200)])
def test_orthogonalise_keeps_directions_and_equalizes_singular_values(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    turned = u.T @ orthogonalise(matrix[None])[0] @ vh.T
    sizes = turned.diagonal()
    assert 0.6 < sizes.min() <= sizes.max() < 1.3
    torch.testing.assert_close(turned, sizes.diag(), atol=1e-5, rtol=0)


def test_newton_schulz_on_the_gram_matrix_matches_the_direct_form() -> None:
    a, b, c = 3.4445, -4.7750, 2.0315
    matrices = torch.randn(4, 24, 96, generator=torch.Generator().manual_seed(0))
    matrices[1] *= torch.logspace(0, -6, 24)[:, None]  # singular values of very different size
    matrices[2, 5] = matrices[2, 4]  # and a rank-deficient one
    matrices[3] = 0
    x = matrices.double()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    torch.testing.assert_close(orthogonalise(matrices).double(), x, atol=2e-3, rtol=0)


@pytest.mark.parametrize("shape", [(24, 16), (16, 48)])
def test_steps_match_pytorchs_muon(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine = Muon([{"params": [ours], "matrices": True, "weight_decay": 0.1}], lr=0.02)
    peer = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        gradient = torch.randn(shape, generator=generator)
        for parameter, optimizer in ((ours, mine), (theirs, peer)):
            parameter.grad = gradient.clone()
            optimizer.step()
    apart, moved = (ours - theirs).detach().norm(), (theirs - start).detach().norm()
    assert apart < 0.02 * moved  # it computes in BF16
    assert moved > 0


@pytest.mark.parametrize("weight_decay", [0.05, 0.0])
def test_is_matrix(weight_decay: float) -> None:
    model = tiny_net(num_classes=32)
    optimizer = build_optimizer(model, OptimConfig(name="muon", weight_decay=weight_decay, scale_lr=10.0))
    settings = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert len(settings) == len(list(model.parameters()))
    matrices = {name for name, p in model.named_parameters() if settings[id(p)]["matrices"]}
    assert "stages.1.downsample.conv.weight" in matrices
    assert any(name.endswith("in_proj.weight") for name in matrices)
    assert not any(part in name for name in matrices for part in ("dwconv", "norm", "theta", "bias", "head"))
    assert {settings[id(p)]["lr_scale"] for name, p in model.named_parameters() if name in matrices} == {4.0}
    assert not is_matrix(nn.Parameter(torch.ones(64, 1, 3, 3)))
    assert not is_matrix(nn.Parameter(torch.ones(8, 64)))


@pytest.mark.parametrize(
    ("task", "answers"),
    [
        ("segment", ["head.1.weight", "aux.4.weight"]),
        (
            "detect",
            [
                "rpn.head.cls_logits.weight",
                "rpn.head.bbox_pred.weight",
                "roi_heads.box_predictor.cls_score.weight",
                "roi_heads.box_predictor.bbox_pred.weight",
                "roi_heads.mask_predictor.mask_fcn_logits.weight",
            ],
        ),
    ],
)
def test_output_layers_use_adamw(task: str, answers: list[str]) -> None:
    backbone, classes = ModelConfig(name="tailprop_pico", args=dict(depths=[1, 1, 1, 1], dims=[16, 16, 32, 32])), 40
    model: nn.Module
    if task == "segment":
        model, _ = create_segmenter(backbone, classes, SegmenterConfig(channels=16, aux_channels=16))
    else:
        model, _ = create_detector(backbone, classes, 64, 64, DetectorConfig(channels=16, box_width=32))
    optimizer = build_optimizer(model, OptimConfig(name="muon", weight_decay=0.05))
    matrices = {id(p) for group in optimizer.param_groups if group.get("matrices") for p in group["params"]}
    weights = dict(model.named_parameters())
    assert not any(id(weights[name]) in matrices for name in answers)
    wide = {name for name, p in weights.items() if is_matrix(p)}
    assert wide - {name for name, p in weights.items() if id(p) in matrices} <= set(answers)


def test_overflow_skips_the_step() -> None:
    weight = nn.Parameter(torch.ones(16, 16))
    optimizer = Muon([{"params": [weight], "matrices": True, "weight_decay": 0.1}], lr=0.1)
    weight.grad = torch.ones(16, 16)
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    assert torch.equal(weight, torch.ones(16, 16))
    optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    optimizer.step()
    assert not torch.equal(weight, torch.ones(16, 16))


def test_resumed_run_has_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", optim={"name": "muon"})
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / "run")]) == 0
    stop_and_resume(recipe, tmp_path / "again", 5, monkeypatch)
    assert_same_run(tmp_path / "run", tmp_path / "again")


def test_muon_lr_scale_must_be_positive(capsys: pytest.CaptureFixture[str]) -> None:
    assert tailprop_cli.main(["train", "digits", "--optim.name", "muon", "--optim.muon-lr-scale", "0"]) == 2
    assert "optim.muon_lr_scale must be positive" in capsys.readouterr().err
