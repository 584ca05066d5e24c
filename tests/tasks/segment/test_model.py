"""UPerNet: the model, windows that average exactly, mean IoU against scikit-learn, and runs from training to prediction."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from sklearn.metrics import jaccard_score, recall_score
from torch import Tensor, nn

from tailprop.data.formats.label_maps import IGNORE, ade20k_classes
from tailprop.engine.config import ModelConfig, OptimConfig
from tailprop.engine.optim import build_optimizer, build_schedule
from tailprop.engine.recipes import find_recipe, read_recipe
from tailprop.engine.settings import build
from tailprop.engine.train_state import convert_batch_norms
from tailprop.runtime.distributed import World
from tailprop.tasks.common.classes import align_classes
from tailprop.tasks.common.palette import class_color
from tailprop.tasks.segment.config import InferenceConfig, SegmentAugmentConfig, SegmentConfig, SegmenterConfig
from tailprop.tasks.segment.draw import draw_labels, legend, with_legend
from tailprop.tasks.segment.inference import label_image, most_probable, slide
from tailprop.tasks.segment.metrics import confusion, score_confusion
from tailprop.tasks.segment.model import Segmenter, create_segmenter, segmenter_macs
from tailprop.tasks.segment.task import MeanLoss, check_batch_norm, papers_miou, pixel_loss
from tailprop.tasks.segment.windows import windows

SMALL = SegmenterConfig(channels=16, aux_channels=8)
SWIN = "swin_tiny_patch4_window7_224"
NARROW = dict(depths=[1, 1, 1, 1], dims=[8, 16, 24, 32])


def small_segmenter(name: str = "tailprop_pico", classes: int = 5, **args: Any) -> Segmenter:
    return create_segmenter(ModelConfig(name=name, args=args), classes, SMALL)[0]


# The model


@pytest.mark.parametrize("name", ["tailprop_pico", "vheat_tiny", "convnext_atto", "resnet18", SWIN])
def test_any_backbone_every_parameter_any_size(name: str) -> None:
    model = small_segmenter(name).train()
    logits, auxiliary = model(torch.rand(2, 3, 64, 96))
    assert logits.shape == auxiliary.shape == (2, 5, 64, 96)
    (logits.square().mean() + auxiliary.square().mean()).backward()
    unreached = [n for n, p in model.named_parameters() if p.grad is None]
    assert not unreached  # DDP would wait for them
    with torch.no_grad():
        assert model.eval()(torch.rand(1, 3, 45, 91)).shape == (1, 5, 45, 91)


def test_every_stage_has_a_norm_before_both_heads() -> None:
    model = small_segmenter(**NARROW)
    assert [norm.weight.shape[0] for norm in model.norms] == [8, 16, 24, 32]
    seen: list[Tensor] = []
    model.decoder.register_forward_pre_hook(lambda _, args: seen.extend(args[0][2:]))
    model.aux.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(10 * torch.randn(2, 3, 64, 64))
    assert len(seen) == 5
    assert torch.equal(seen[4], seen[2])  # the third stage
    for stage in seen:
        assert stage.mean(1).abs().max() < 1e-4
        assert stage.var(1, correction=0).median().item() == pytest.approx(1, abs=0.05)


def test_decoder_matches_segmentation_models_pytorch() -> None:
    ours = small_segmenter(**NARROW).eval()
    theirs = smp.UPerNet("tu-tailprop_pico", encoder_weights=None, decoder_channels=16, classes=5, **NARROW).eval()
    missing, _ = theirs.encoder.model.load_state_dict(ours.backbone.state_dict(), strict=False)
    assert not [name for name in missing if "head" not in name]
    norms = {f"feature_norms.{name}": value for name, value in ours.norms.state_dict().items()}
    theirs.decoder.load_state_dict(ours.decoder.state_dict() | norms)
    seen: dict[str, Tensor] = {}
    for name, model in (("ours", ours), ("theirs", theirs)):
        model.decoder.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out}))
        with torch.no_grad():
            model(torch.ones(1, 3, 64, 96) * torch.linspace(0, 1, 96))
    assert torch.allclose(seen["ours"], seen["theirs"], atol=1e-5)
    pooled = [block[0].output_size for block in ours.decoder.psp.blocks]
    assert pooled == [1, 2, 3, 6]


def test_logits_are_upsampled_without_aligned_corners() -> None:
    model = small_segmenter(**NARROW).eval()
    coarse: list[Tensor] = []
    model.head.register_forward_hook(lambda _, __, out: coarse.append(out))
    with torch.no_grad():
        logits = model(torch.rand(1, 3, 64, 64))
    assert coarse[0].shape[-2:] == (16, 16)
    assert torch.equal(logits, F.interpolate(coarse[0], (64, 64), mode="bilinear", align_corners=False))


def test_segmenter_without_auxiliary_head() -> None:
    config = SegmenterConfig(channels=16, aux_weight=0)
    model, _ = create_segmenter(ModelConfig(name="tailprop_pico", args=NARROW), 5, config)
    assert model.aux is None
    assert model.train()(torch.rand(2, 3, 64, 64)).shape == (2, 5, 64, 64)


def test_no_weight_decay_on_norms_biases_and_excluded_parameters() -> None:
    model = small_segmenter(**NARROW)
    groups = build_optimizer(model, OptimConfig(weight_decay=0.01)).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    excluded = model.no_weight_decay()
    assert any(name.endswith("theta") for name in excluded)
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.0 if parameter.ndim < 2 or name in excluded else 0.01), name


def test_warm_start_from_classifiers_and_segmenters(tmp_path: Path) -> None:
    classifier = timm.create_model("tailprop_pico", num_classes=5, **NARROW)
    save_file(classifier.state_dict(), tmp_path / "c.safetensors")
    config = ModelConfig(name="tailprop_pico", args=NARROW, init=str(tmp_path / "c.safetensors"))
    model, taken = create_segmenter(config, 5, SMALL)
    assert taken is not None
    assert not taken.fresh  # the whole backbone; only the classifier's head is unused
    assert all(name.startswith(("norm.", "head.")) for name in taken.unused)
    save_file(model.state_dict(), tmp_path / "s.safetensors")
    config = ModelConfig(name="tailprop_pico", args=NARROW, init=str(tmp_path / "s.safetensors"))
    other, taken = create_segmenter(config, 9, SMALL)
    assert taken is not None
    assert all(name.startswith(("head.", "aux.4.")) for name in taken.fresh)  # nine classes instead of five
    assert torch.equal(other.decoder.fusion_block[0].weight, model.decoder.fusion_block[0].weight)


@pytest.mark.parametrize(
    ("name", "published", "within"),
    [
        ("convnext_tiny", 235, 0.005),
        (SWIN, 237, 0.005),
        ("tailprop_tiny", 234, 0.03),
        ("tailprop_small", 253, 0.03),
        ("tailprop_base", 291, 0.03),
    ],
)
def test_multiply_adds_match_published_values(name: str, published: int, within: float) -> None:
    """Published values for UPerNet at 512x512: ConvNeXt and Swin (a quarter of those at 2048x512), and our paper."""
    with torch.device("meta"):
        model, _ = create_segmenter(ModelConfig(name=name), 150, SegmenterConfig())
    assert segmenter_macs(model) / 1e9 == pytest.approx(published, rel=within)


# Loss and numbers


def test_loss_is_averaged_over_all_pixels() -> None:
    logits, labels = torch.randn(2, 4, 5, 6), torch.randint(0, 4, (2, 5, 6))
    labels[0, :3] = IGNORE
    probabilities = logits.softmax(1)
    places = [(b, y, x) for b in range(2) for y in range(5) for x in range(6) if labels[b, y, x] != IGNORE]
    by_hand = [-math.log(probabilities[b, labels[b, y, x], y, x]) for b, y, x in places]
    assert pixel_loss(logits, labels).item() == pytest.approx(sum(by_hand) / 60, rel=1e-5)
    assert pixel_loss(logits, torch.full_like(labels, IGNORE)) == 0  # not nan


def test_batch_of_one_raises_where_batch_norm_would_fail() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        small_segmenter(**NARROW).train()(torch.rand(1, 3, 64, 64))
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    check_batch_norm(2, World(0, 1, cpu))
    check_batch_norm(1, World(0, 2, gpu))  # batch norm is synchronized over the GPUs
    for world in (World(0, 1, gpu), World(0, 2, cpu)):
        with pytest.raises(ValueError, match="batch norm needs two images per batch"):
            check_batch_norm(1, world)


@pytest.mark.parametrize("seed", range(4))
def test_mean_iou_matches_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = 12
    present = rng.permutation(k)[:9]  # three classes do not occur
    labels = rng.choice(present[:7], size=(4, 30, 41))  # two are only predicted
    predicted = np.where(rng.random(labels.shape) < 0.6, labels, rng.choice(present[1:], size=labels.shape))
    labels[rng.random(labels.shape) < 0.2] = IGNORE
    counts = sum(confusion(torch.tensor(a), torch.tensor(b), k) for a, b in zip(labels, predicted, strict=True))
    assert isinstance(counts, Tensor)
    scores, counted = score_confusion(counts), labels != IGNORE
    truth, found = labels[counted], predicted[counted]
    seen = np.union1d(truth, found)
    iou = 100 * jaccard_score(truth, found, labels=seen, average=None)
    assert [i for i, value in enumerate(scores.iou) if value is not None] == seen.tolist()
    assert [value for value in scores.iou if value is not None] == pytest.approx(iou)
    assert scores.miou == pytest.approx(iou.mean())
    assert scores.pixel_accuracy == pytest.approx(100 * (truth == found).mean())
    assert scores.class_accuracy == pytest.approx(100 * recall_score(truth, found, labels=np.unique(truth), average="macro"))
    assert counts.sum() == counted.sum()


def test_batch_norms_are_synchronized_on_gpus() -> None:
    """Only the replacement of layers: SyncBatchNorm itself is PyTorch's and runs on GPUs only."""
    gpus, cpus = World(0, 2, torch.device("cuda", 0)), World(0, 2, torch.device("cpu"))
    norms = {name for name, module in small_segmenter().named_modules() if isinstance(module, nn.BatchNorm2d)}
    shared = convert_batch_norms(small_segmenter(), gpus)
    assert {name for name, module in shared.named_modules() if isinstance(module, nn.SyncBatchNorm)} == norms
    assert any(name.startswith("decoder") for name in norms)
    assert any(name.startswith("aux") for name in norms)
    for world in (cpus, World(0, 1, torch.device("cuda", 0))):
        assert not any(
            isinstance(module, nn.SyncBatchNorm) for module in convert_batch_norms(small_segmenter(), world).modules()
        )


def test_classes_missing_in_the_dataset_do_not_count() -> None:
    labels, predicted = torch.tensor([[0, 0, 2, 2]]), torch.tensor([[0, 1, 2, 2]])  # class 1 is predicted but cannot be correct
    counts = confusion(labels, predicted, 4)
    assert score_confusion(counts).miou == pytest.approx((50 + 0 + 100) / 3)
    some = score_confusion(counts, classes=[0, 2, 3])
    assert some.miou == pytest.approx((50 + 100) / 2)
    assert some.iou == (50.0, None, 100.0, None)
    assert some.pixel_accuracy == 75


def test_no_labelled_pixel_is_an_error() -> None:
    with pytest.raises(ValueError, match="no labelled pixel"):
        score_confusion(confusion(torch.full((3, 3), IGNORE), torch.zeros(3, 3, dtype=torch.int64), 4))


def test_synonyms_match_one_class_only() -> None:
    def align(data: tuple[str, ...], known: tuple[str, ...]) -> list[int | None]:
        return align_classes(data, known, "mine")

    assert align(("door", "building, edifice"), ("building", "door, gate")) == [1, 0]
    assert align(("car, auto", "car, waggon"), ("car, waggon", "car, auto")) == [1, 0]  # full names have priority
    with pytest.raises(
        ValueError, match="mine has 'car, auto' and 'car, waggon', which are the same class of the model: 'car'"
    ):
        align(("car, auto", "car, waggon"), ("car", "bus"))
    with pytest.raises(ValueError, match="mine has classes that the model does not have: car"):
        align(("car",), ("car, auto", "car, waggon"))  # ambiguous


# Windows


def coordinates(h: int, w: int) -> Tensor:
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    return torch.stack([y, x, 1000 * y + x])[None].float()  # (1, 3, H, W)


@pytest.mark.parametrize(
    ("h", "w", "window", "stride"),
    [
        (512, 683, 512, 341),
        (37, 90, 64, 43),
        (64, 64, 64, 43),
        (65, 63, 64, 43),
        (200, 131, 64, 43),
        (150, 64, 64, 64),
        (7, 300, 50, 1),
    ],
)
def test_windows_of_coordinates_are_exact_at_every_pixel(h: int, w: int, window: int, stride: int) -> None:
    where = coordinates(h, w)
    assert torch.equal(slide(lambda x: x, where, window, stride), where)
    for length in (h, w):
        spans = windows(length, window, stride)
        assert {end - begin for begin, end in spans} == {min(window, length)}
        assert spans[0][0] == 0
        assert spans[-1][1] == length
        assert all(b[0] - a[0] <= stride for a, b in pairwise(spans))


def test_overlapping_windows_are_averaged() -> None:
    """Against the mean computed pixel by pixel, for a model whose output depends on the window."""
    h, w, window, stride = 23, 40, 16, 7
    where = coordinates(h, w)

    def model(x: Tensor) -> Tensor:
        return torch.cat([x - x[..., :1, :1], x.square()], dim=1)  # (1, 6, ...)

    starts = [sorted({min(k * stride, n - window) for k in range(n)}) for n in (h, w)]
    found = slide(model, where, window, stride)
    for y, x in [(0, 0), (7, 8), (15, 16), (16, 23), (22, 39), (9, 30)]:
        tops = [t for t in starts[0] if t <= y < t + window]
        lefts = [s for s in starts[1] if s <= x < s + window]
        answers = [model(where[..., t : t + window, s : s + window])[0, :, y - t, x - s] for t in tops for s in lefts]
        assert torch.allclose(found[0, :, y, x], torch.stack(answers).mean(0), rtol=1e-6)


def test_prediction_is_the_argmax_of_mean_probabilities() -> None:
    views = [3 * torch.randn(1, 37, h, w) for h, w in ((9, 12), (14, 20), (5, 6))]
    for chosen in (views, views[:1]):
        probabilities = torch.stack([F.interpolate(v, (21, 30), mode="bilinear").softmax(1) for v in chosen]).mean(0)
        assert torch.equal(most_probable(chosen, (21, 30)), probabilities.argmax(1)[0])
    views[1][0, 3, 2, 2] = math.nan
    with pytest.raises(ValueError, match="not finite"):
        most_probable(views, (21, 30))


def test_multi_scale_and_flip_inference() -> None:
    """A model that separates left and right by colour, not by position: all views agree."""
    image = torch.zeros(3, 40, 70, dtype=torch.uint8)
    image[0, :, :30], image[2, :, 30:] = 255, 255
    seen: list[tuple[int, int]] = []

    def model(x: Tensor) -> Tensor:
        seen.append((x.shape[2], x.shape[3]))
        return x[:, [2, 0]]  # class 1 where it is red

    for config in (
        InferenceConfig(mode="whole", scales=(0.5, 1.0, 1.75), flip=True),
        InferenceConfig(window_px=32, stride_px=20, scales=(1.0, 1.5), flip=True),
    ):
        labels = label_image(model, image, config, 40, 100)
        assert torch.equal(labels, (image[0] == 255).long())
    assert seen[:6] == [(32, 35)] * 2 + [(40, 70)] * 2 + [(70, 123)] * 2  # 20x35 is filled up to 32 px
    assert set(seen[6:]) == {(32, 32)}


# Images


def test_colours_legend_and_tint() -> None:
    colours = np.array([class_color(i) for i in range(150)])
    assert len(np.unique(colours, axis=0)) == 150
    image = Image.new("RGB", (60, 40), (10, 20, 30))
    labels = np.full((40, 60), IGNORE)
    labels[:20] = 3
    drawn = np.asarray(draw_labels(image, labels))
    assert (drawn[20:] == (10, 20, 30)).all()
    assert (drawn[:20] == np.round(0.4 * 18 + 0.6 * np.array(class_color(3)))).all()
    counts = np.bincount(labels[:20].ravel(), minlength=150)
    page = np.asarray(legend(counts, [f"class {i}" for i in range(150)], 200))
    assert page.shape[1] == 200
    assert (page == class_color(3)).all(-1).any()
    assert not (page == class_color(2)).all(-1).any()
    assert legend(np.ones(150, dtype=np.int64), ["a long name of a class"] * 150, 120).height > 400  # rows below each other


def test_legend_of_a_long_narrow_image() -> None:
    page = with_legend(Image.new("RGB", (30, 6000)), np.array([180_000]), ("sky",))
    assert page.height < 65_500


# Recipes


@pytest.mark.parametrize(("size", "drop_path", "paper"), [("tiny", 0.3, 47.8), ("small", 0.4, 50.0), ("base", 0.5, 50.8)])
def test_recipes_match_the_paper(size: str, drop_path: float, paper: float) -> None:
    """Appendix, Semantic Segmentation."""
    config = build(SegmentConfig, read_recipe(find_recipe(f"ade20k_upernet_{size}")))
    assert config.model == ModelConfig(name=f"tailprop_{size}", drop_path=drop_path)
    assert config.segmenter == SegmenterConfig(channels=512, dropout=0.1, aux_channels=256, aux_weight=0.4)
    assert config.paper_miou == {f"tailprop_{size}": paper}
    assert (config.data.short_px, config.data.long_px, config.data.classes) == (512, 2048, "ade20k")
    assert config.augment == SegmentAugmentConfig((0.5, 2.0), 512, 0.75, 0.5, 0.5)
    assert config.inference == InferenceConfig("slide", 512, 341)
    optim = config.optim
    assert (optim.batch_size, optim.betas, optim.weight_decay) == (2, (0.9, 0.999), 0.01)
    assert optim.epoch_steps is not None
    assert optim.epochs * optim.epoch_steps == 160_000
    rate = build_schedule(optim, optim.epoch_steps, processes=8)
    assert rate.at(749) == pytest.approx(3e-5)
    assert [rate.at(1499), rate.at(1500)] == pytest.approx([6e-5, 6e-5])
    assert rate.at(1500 + 158_500 // 2) == pytest.approx(3e-5)  # a straight line
    assert rate.at(160_000) == 0


def test_paper_result_is_shown_for_ade20k_only() -> None:
    config = build(SegmentConfig, read_recipe(find_recipe("ade20k_upernet_tiny")))
    ade20k = ade20k_classes().names
    assert "47.8" in papers_miou(config, ade20k, 2000)
    assert "47.8" in papers_miou(config, [f"{ade20k[0]}, synonym", *ade20k[1:]], 2000)
    assert papers_miou(config, ade20k, 3) == ""
    assert papers_miou(config, [f"class {i}" for i in range(150)], 2000) == ""
    assert papers_miou(replace(config, model=ModelConfig(name="tailprop_small")), ade20k, 2000) == ""


def test_validation_loss_is_that_of_the_logits() -> None:
    """At the size the network sees, with labels resized to it; here the sizes are equal."""
    logits, labels = torch.randn(1, 3, 40, 50), torch.randint(0, 3, (40, 50))
    labels[:5] = IGNORE
    losses = MeanLoss()
    for k in (1.0, 2.0):
        losses.keep(k * logits)
        losses.add(labels)
    expected = [float(pixel_loss(k * logits, labels[None])) for k in (1.0, 2.0)]
    assert losses.mean(torch.device("cpu")) == pytest.approx(sum(expected) / 2, rel=1e-6)
    image = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8)
    seen: list[torch.Tensor] = []
    config = InferenceConfig("whole")
    label_image(lambda x: torch.ones(1, 3, *x.shape[-2:]), image, config, 64, 200, seen.append)
    assert [tuple(view.shape) for view in seen] == [(1, 3, 64, 80)]
