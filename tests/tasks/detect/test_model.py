"""Mask R-CNN: the model, its cost, and the recipes of the paper."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torchvision.models.detection.transform import GeneralizedRCNNTransform

import tailprop_cli
from tailprop.engine.config import ModelConfig, OptimConfig
from tailprop.engine.optim import build_optimizer, build_schedule
from tailprop.engine.recipes import find_recipe, read_recipe
from tailprop.engine.settings import build
from tailprop.tasks.detect.bench import PAPER_GMACS, papers_gmacs
from tailprop.tasks.detect.config import DetectConfig, DetectorConfig
from tailprop.tasks.detect.model import Sizes, create_detector, detector_macs
from tailprop.tasks.detect.options import BenchDetect
from tests.helpers import ROOT
from tests.helpers.detecting import NARROW, SMALL, SWIN, small_detector


def target(h: int, w: int) -> dict[str, torch.Tensor]:
    masks = torch.zeros(1, h, w, dtype=torch.uint8)
    masks[0, 10:40, 8:50] = 1
    return dict(boxes=torch.tensor([[8.0, 10, 50, 40]]), labels=torch.tensor([2]), masks=masks)


@pytest.mark.parametrize("name", ["tailprop_pico", "vheat_tiny", "waveformer_tiny", "convnext_atto", SWIN])
def test_any_backbone_every_parameter_any_size(name: str) -> None:
    model = small_detector(name)
    found = model.train()([torch.rand(3, 64, 96), torch.rand(3, 61, 77)], [target(64, 96), target(61, 77)])
    torch.stack(list(found.values())).sum().backward()
    unreached = [n for n, p in model.named_parameters() if p.grad is None]
    assert not unreached  # DDP would wait for them
    with torch.no_grad():
        (found,) = model.eval()([torch.rand(3, 45, 91)])
    assert found["masks"].shape[1:] == (1, 45, 91)


def test_every_stage_has_a_norm() -> None:
    model = small_detector(**NARROW)
    assert [norm.weight.shape[0] for norm in model.backbone.norms] == [8, 16, 24, 32]
    seen: list[torch.Tensor] = []
    model.backbone.fpn.register_forward_pre_hook(lambda _, args: seen.extend(args[0].values()))
    with torch.no_grad():
        model.backbone(100 * torch.rand(1, 3, 64, 64))
    for stage in seen:
        assert stage.mean(1).abs().max() < 1e-4
        assert stage.var(1, correction=0).median() == pytest.approx(1, abs=0.05)


def test_image_without_objects_in_training() -> None:
    empty = dict(
        boxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.int64), masks=torch.zeros(0, 64, 64, dtype=torch.uint8)
    )
    model = small_detector(**NARROW).train()
    loss = torch.stack(list(model([torch.rand(3, 64, 64)], [empty]).values())).sum()
    loss.backward()
    assert torch.isfinite(loss)


@pytest.mark.parametrize("size", [(1, 200), (2, 400), (300, 1)])
def test_long_thin_images(size: tuple[int, int]) -> None:
    model = small_detector(**NARROW).eval()
    with torch.no_grad():
        (found,) = model([torch.rand(3, *size)])
    assert found["masks"].shape[1:] == (1, *size)


def test_masks_match_torchvision() -> None:
    ours, theirs = (kind(64, 96, [0.0] * 3, [1.0] * 3).eval() for kind in (Sizes, GeneralizedRCNNTransform))
    corners = 20 * torch.rand(19, 2)
    found = dict(boxes=torch.cat([corners, corners + 5 + 30 * torch.rand(19, 2)], 1), masks=torch.rand(19, 1, 28, 28))
    for count in (19, 8, 0):
        some = {name: value[:count] for name, value in found.items()}
        (a,), (b,) = (kind.postprocess([dict(some)], [(64, 80)], [(128, 160)]) for kind in (ours, theirs))
        assert torch.equal(a["boxes"], b["boxes"])
        assert a["masks"].dtype == torch.bool
        assert torch.equal(a["masks"], b["masks"] >= 0.5)


def test_coordinates_stay_exact_under_autocast() -> None:
    model = small_detector(**NARROW).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        maps = model.backbone(torch.rand(1, 3, 64, 64))
        assert {m.dtype for m in maps.values()} == {torch.float32}
        scores, offsets = model.rpn.head(list(maps.values()))
        predicted = model.roi_heads.box_predictor(torch.rand(2, 32))
        assert {t.dtype for t in (*scores, *offsets, *predicted)} == {torch.float32}
        inner = model.rpn.head.conv(maps["0"])
    assert inner.dtype == torch.bfloat16  # the heads compute in BF16


def test_no_weight_decay_on_norms_biases_and_excluded_parameters() -> None:
    model = small_detector(**NARROW)
    groups = build_optimizer(model, OptimConfig(weight_decay=0.05)).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    excluded = model.no_weight_decay()
    assert any(name.endswith("theta") for name in excluded)
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.0 if parameter.ndim < 2 or name in excluded else 0.05), name


def test_warm_start_from_a_classifier(tmp_path: Path) -> None:
    classifier = timm.create_model("tailprop_pico", num_classes=5, **NARROW)
    save_file(classifier.state_dict(), tmp_path / "c.safetensors")
    config = ModelConfig(name="tailprop_pico", args=NARROW, init=str(tmp_path / "c.safetensors"))
    model, taken = create_detector(config, 3, 64, 96, SMALL)
    assert taken is not None
    assert not taken.fresh  # the whole backbone; only the classifier's head is unused
    assert all(name.startswith(("norm.", "head.")) for name in taken.unused)
    stages = {k: v for k, v in model.body.state_dict().items() if k.startswith("stages")}
    assert all(torch.equal(v, classifier.state_dict()[k]) for k, v in stages.items())


def test_unsuitable_backbone_raises() -> None:
    with pytest.raises(ValueError, match="the pyramid needs 4, 8, 16, 32"):
        small_detector("vit_tiny_patch16_224")


@pytest.mark.parametrize(
    ("name", "published", "within"),
    [("convnext_tiny", 262, 0.005), (SWIN, 267, 0.005), ("tailprop_tiny", 271, 0.03)],
)
def test_multiply_adds_match_published_values(name: str, published: int, within: float) -> None:
    """Published values of ConvNeXt, Swin and our paper for Mask R-CNN at 1280x800."""
    with torch.device("meta"):
        model, _ = create_detector(ModelConfig(name=name), 80, 800, 1333, DetectorConfig())
    assert detector_macs(model) / 1e9 == pytest.approx(published, rel=within)


def test_table_of_multiply_adds_is_current() -> None:
    """results/detect_macs.csv, which the documentation quotes."""
    rows = list(csv.DictReader((ROOT / "results" / "detect_macs.csv").read_text().splitlines()))
    shown = dict(re.findall(r"\| `(\w+)` \| ([\d.]+) \|", (ROOT / "docs" / "detection.md").read_text()))
    assert {row["model"] for row in rows} == shown.keys()
    for row in rows:
        assert row["paper_gmacs"] == str(PAPER_GMACS[row["model"]])
        assert float(shown[row["model"]]) == pytest.approx(int(row["macs"]) / 1e9, abs=0.05)
        if row["model"] in ("tailprop_small", "tailprop_base", "vheat_small"):
            with torch.device("meta"):
                model, _ = create_detector(ModelConfig(name=row["model"]), 80, 800, 1333, DetectorConfig())
            assert detector_macs(model) == int(row["macs"])


@pytest.mark.parametrize("schedule", ["1x", "3x"])
@pytest.mark.parametrize(
    ("size", "drop_path", "paper"),
    [
        ("tiny", 0.1, {"1x": (46.2, 41.8), "3x": (47.8, 43.1)}),
        ("small", 0.3, {"1x": (47.4, 42.8), "3x": (49.4, 44.2)}),
        ("base", 0.5, {"1x": (48.2, 43.4), "3x": (50.3, 44.8)}),
    ],
)
def test_recipes_match_the_paper(size: str, drop_path: float, paper: dict[str, Any], schedule: str) -> None:
    """Appendix, Object Detection and Instance Segmentation."""
    config = build(DetectConfig, read_recipe(find_recipe(f"coco_maskrcnn_{size}_{schedule}")))
    assert config.model == ModelConfig(name=f"tailprop_{size}", drop_path=drop_path)
    assert config.detector == DetectorConfig()
    assert config.paper_ap == {f"tailprop_{size}": list(paper[schedule])}
    assert (config.data.short_px, config.data.long_px) == (800, 1333)
    optim, steps = config.optim, 117_266 // 16
    assert (optim.betas, optim.weight_decay) == ((0.9, 0.999), 0.05)
    rate = build_schedule(optim, steps, processes=8)
    assert rate.at(999) == rate.at(1000) == pytest.approx(1e-4)
    assert rate.at(499) == pytest.approx(5e-5)
    epochs, first, second = (12, 8, 11) if schedule == "1x" else (36, 27, 33)
    assert rate.steps == epochs * steps
    assert [rate.at(e * steps - k) for e in (first, second) for k in (1, 0)] == pytest.approx([1e-4, 1e-5, 1e-5, 1e-6])
    augment = config.augment
    assert augment.flip == 0.5
    if schedule == "1x":
        assert (augment.short_px, augment.crop_chance) == ((800,), 0)
    else:
        assert augment.short_px == tuple(range(480, 801, 32))
        assert (augment.crop_chance, augment.crop_short_px, augment.crop_px) == (0.5, (400, 500, 600), (384, 600))


def test_paper_results_are_shown_for_their_own_model_only() -> None:
    for height, width, paper in ((800, 1280, 348), (1280, 800, None), (800, 1333, None)):
        assert papers_gmacs("vheat_small", BenchDetect(height=height, width=width)) == paper


def test_bench_writes_csv(tmp_path: Path) -> None:
    out = tmp_path / "bench.csv"
    size = ["--height", "64", "--width", "96", "--rounds", "1", "--threads", "1", "--no-memory"]
    size += ["--detector.channels", "16", "--detector.proposals", "20", "--detector.detections", "5"]
    assert tailprop_cli.main(["bench", "detect", "--models", "tailprop_pico", "convnext_atto", *size, "--out", str(out)]) == 0
    header, first, second = out.read_text().splitlines()
    assert header.startswith("model,parameters,macs,paper_gmacs,over_paper,img_per_s_best")
    assert first.startswith("tailprop_pico,")
    assert float(first.split(",")[7]) == 1.0
    assert second.startswith("convnext_atto,")


def test_evaluation_loss_is_the_training_loss() -> None:
    """With all regions sampled and the backbone in evaluation mode, both are the same number."""
    config = DetectorConfig(channels=16, box_width=32, mask_layers=1, candidates=40, proposals=20, rpn_samples=10**6)
    config = replace(config, box_samples=10**6, anchor_px=(8, 16, 32, 64, 128))
    model = ModelConfig(name="tailprop_pico", args=dict(depths=[1, 1, 1, 1], dims=[8, 16, 24, 32]))
    detector, _ = create_detector(model, 2, 64, 64, config)
    image, objects = torch.rand(3, 64, 64), target(64, 64)
    with torch.no_grad():
        loss = detector.eval().evaluation_loss(image, objects)
        assert not any(module.training for module in detector.modules())
        trained = detector.train()([image], [objects])
        large = detector.eval().evaluation_loss(F.interpolate(image[None], scale_factor=2.0)[0], _enlarged(objects))
    assert loss == pytest.approx(float(sum(trained.values())), rel=1e-4)
    assert large == pytest.approx(float(loss), rel=0.05)  # the image is resized, and its objects with it
    nothing = dict(boxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.int64), masks=objects["masks"][:0])
    assert torch.isfinite(detector.evaluation_loss(image, nothing))


def _enlarged(objects: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    masks = objects["masks"].repeat_interleave(2, 1).repeat_interleave(2, 2)
    return objects | dict(boxes=2 * objects["boxes"], masks=masks)
