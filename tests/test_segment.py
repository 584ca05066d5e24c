"""UPerNet: the model, windows that average exactly, mean IoU against scikit-learn, and runs from training to prediction."""

import json
import math
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import timm
import torch
import torch.nn.functional as F
import yaml
from PIL import Image
from safetensors.torch import save_file
from sklearn.metrics import jaccard_score, recall_score
from torch import Tensor

import tailprop_cli
from tailprop.config import ModelConfig, build, find_recipe, read_recipe
from tailprop.data.labels import IGNORE
from tailprop.data.scenes import write_ade20k
from tailprop.data.segment import SegmentAugmentConfig
from tailprop.data.synthetic import SHAPES, SceneConfig
from tailprop.distributed import World
from tailprop.label_scores import confusion, score_confusion
from tailprop.labelmaps import class_colour, draw_labels, legend, with_legend
from tailprop.load_segmenter import load_segmenter
from tailprop.optim import build_optimizer, build_schedule
from tailprop.segmenter import Segmenter, SegmenterConfig, create_segmenter, segmenter_macs
from tailprop.sliding import InferenceConfig, label_picture, most_probable, slide, windows
from tailprop.tasks.segment import SegmentConfig, check_batch, pixel_loss
from tests.runs import assert_same_run, last_row, launch, losses, stop_and_go_on

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
    assert not unreached  # distributed training would wait for them
    with torch.no_grad():
        assert model.eval()(torch.rand(1, 3, 45, 91)).shape == (1, 5, 45, 91)


def test_a_norm_on_every_stage_before_both_heads() -> None:
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


def test_the_decoder_is_that_of_segmentation_models_pytorch() -> None:
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


def test_logits_are_enlarged_without_aligned_corners() -> None:
    model = small_segmenter(**NARROW).eval()
    coarse: list[Tensor] = []
    model.head.register_forward_hook(lambda _, __, out: coarse.append(out))
    with torch.no_grad():
        logits = model(torch.rand(1, 3, 64, 64))
    assert coarse[0].shape[-2:] == (16, 16)
    assert torch.equal(logits, F.interpolate(coarse[0], (64, 64), mode="bilinear", align_corners=False))


def test_a_segmenter_without_auxiliary_head() -> None:
    config = SegmenterConfig(channels=16, aux_weight=0)
    model, _ = create_segmenter(ModelConfig(name="tailprop_pico", args=NARROW), 5, config)
    assert model.aux is None
    assert model.train()(torch.rand(2, 3, 64, 64)).shape == (2, 5, 64, 64)


def test_decay_spares_norms_biases_and_what_the_backbone_excepts() -> None:
    model = small_segmenter(**NARROW)
    decay = {id(p): group["weight_decay"] for group in build_optimizer(model, 0.01).param_groups for p in group["params"]}
    spared = model.no_weight_decay()
    assert any(name.endswith("theta") for name in spared)
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.0 if parameter.ndim < 2 or name in spared else 0.01), name


def test_checkpoints_of_classifiers_and_segmenters_start_a_segmenter(tmp_path: Path) -> None:
    classifier = timm.create_model("tailprop_pico", num_classes=5, **NARROW)
    save_file(classifier.state_dict(), tmp_path / "c.safetensors")
    config = ModelConfig(name="tailprop_pico", args=NARROW, init=str(tmp_path / "c.safetensors"))
    model, taken = create_segmenter(config, 5, SMALL)
    assert taken is not None
    assert not taken.fresh  # the whole backbone; only the classifier's own end is left over
    assert all(name.startswith(("norm.", "head.")) for name in taken.unused)
    save_file(model.state_dict(), tmp_path / "s.safetensors")
    config = ModelConfig(name="tailprop_pico", args=NARROW, init=str(tmp_path / "s.safetensors"))
    other, taken = create_segmenter(config, 9, SMALL)
    assert taken is not None
    assert all(name.startswith(("head.", "aux.4.")) for name in taken.fresh)  # nine classes in place of five
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
def test_multiply_adds_are_counted_as_published(name: str, published: int, within: float) -> None:
    """UPerNet at 512x512 in the papers of ConvNeXt and Swin (a quarter of what they give at 2048x512), and in ours."""
    with torch.device("meta"):
        model, _ = create_segmenter(ModelConfig(name=name), 150, SegmenterConfig())
    assert segmenter_macs(model) / 1e9 == pytest.approx(published, rel=within)


# Loss and numbers


def test_the_loss_is_the_mean_over_all_pixels_ignored_ones_as_zeros() -> None:
    logits, labels = torch.randn(2, 4, 5, 6), torch.randint(0, 4, (2, 5, 6))
    labels[0, :3] = IGNORE
    chances = logits.softmax(1)
    places = [(b, y, x) for b in range(2) for y in range(5) for x in range(6) if labels[b, y, x] != IGNORE]
    by_hand = [-math.log(chances[b, labels[b, y, x], y, x]) for b, y, x in places]
    assert pixel_loss(logits, labels).item() == pytest.approx(sum(by_hand) / 60, rel=1e-5)
    assert pixel_loss(logits, torch.full_like(labels, IGNORE)) == 0  # not nan


def test_a_batch_of_one_is_refused_where_batch_norm_would_fail() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        small_segmenter(**NARROW).train()(torch.rand(1, 3, 64, 64))
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    check_batch(2, World(0, 1, cpu))
    check_batch(1, World(0, 2, gpu))  # batch norm is shared by the GPUs
    for world in (World(0, 1, gpu), World(0, 2, cpu)):
        with pytest.raises(ValueError, match="batch norm needs two pictures"):
            check_batch(1, world)


@pytest.mark.parametrize("seed", range(4))
def test_mean_iou_is_scikit_learns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = 12
    present = rng.permutation(k)[:9]  # three classes are nowhere
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


def test_no_labelled_pixel_is_an_error() -> None:
    with pytest.raises(ValueError, match="no labelled pixel"):
        score_confusion(confusion(torch.full((3, 3), IGNORE), torch.zeros(3, 3, dtype=torch.int64), 4))


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
    """Against the mean worked out pixel by pixel, for a model whose answer depends on the window."""
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


def test_the_most_probable_class_is_that_of_the_mean_of_softmax() -> None:
    views = [3 * torch.randn(1, 37, h, w) for h, w in ((9, 12), (14, 20), (5, 6))]
    for chosen in (views, views[:1]):
        chances = torch.stack([F.interpolate(v, (21, 30), mode="bilinear").softmax(1) for v in chosen]).mean(0)
        assert torch.equal(most_probable(chosen, (21, 30)), chances.argmax(1)[0])
    views[1][0, 3, 2, 2] = math.nan
    with pytest.raises(ValueError, match="not finite"):
        most_probable(views, (21, 30))


def test_views_are_scaled_and_mirrored_and_brought_back() -> None:
    """A model that tells left from right by colour, not by place: every view agrees, wherever it is taken."""
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
        labels = label_picture(model, image, config, 40, 100)
        assert torch.equal(labels, (image[0] == 255).long())
    assert seen[:6] == [(32, 35)] * 2 + [(40, 70)] * 2 + [(70, 123)] * 2  # 20x35 is filled up to 32 px
    assert set(seen[6:]) == {(32, 32)}


# Pictures


def test_colours_legend_and_tint() -> None:
    colours = np.array([class_colour(i) for i in range(150)])
    apart = np.abs(colours[:, None] - colours[None]).sum(-1) + 1000 * np.eye(150, dtype=int)
    assert apart.min() >= 36
    picture = Image.new("RGB", (60, 40), (10, 20, 30))
    labels = np.full((40, 60), IGNORE)
    labels[:20] = 3
    drawn = np.asarray(draw_labels(picture, labels))
    assert (drawn[20:] == (10, 20, 30)).all()
    assert (drawn[:20] == np.round(0.4 * np.array([10, 20, 30]) + 0.6 * np.array(class_colour(3)))).all()
    counts = np.bincount(labels[:20].ravel(), minlength=150)
    page = np.asarray(legend(counts, [f"class {i}" for i in range(150)], 200))
    assert page.shape[1] == 200
    assert (page == class_colour(3)).all(-1).any()
    assert not (page == class_colour(2)).all(-1).any()
    assert legend(np.ones(150, dtype=np.int64), ["a long name of a class"] * 150, 120).height > 400  # rows below each other


# Recipes


@pytest.mark.parametrize(("size", "drop_path", "paper"), [("tiny", 0.3, 47.8), ("small", 0.4, 50.0), ("base", 0.5, 50.8)])
def test_recipes_are_the_papers(size: str, drop_path: float, paper: float) -> None:
    """Appendix, Semantic Segmentation."""
    config = build(SegmentConfig, read_recipe(find_recipe(f"ade20k_upernet_{size}")))
    assert config.model == ModelConfig(name=f"tailprop_{size}", drop_path=drop_path)
    assert config.segmenter == SegmenterConfig(channels=512, dropout=0.1, aux_channels=256, aux_weight=0.4)
    assert config.paper_miou == {f"tailprop_{size}": paper}
    assert (config.data.short_px, config.data.long_px, config.data.first_label) == (512, 2048, 1)
    assert config.augment == SegmentAugmentConfig((0.5, 2.0), 512, 0.75, 0.5, 0.5)
    assert config.inference == InferenceConfig("slide", 512, 341)
    optim = config.optim
    assert (optim.batch, optim.betas, optim.weight_decay) == (2, (0.9, 0.999), 0.01)
    assert optim.epoch_steps is not None
    assert optim.epochs * optim.epoch_steps == 160_000
    rate = build_schedule(optim, optim.epoch_steps, processes=8)
    assert rate.at(749) == pytest.approx(3e-5)
    assert [rate.at(1499), rate.at(1500)] == pytest.approx([6e-5, 6e-5])
    assert rate.at(1500 + 158_500 // 2) == pytest.approx(3e-5)  # a straight line
    assert rate.at(160_000) == 0


# Runs


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    write_ade20k(root, SceneConfig(size_px=64, crowd=0.3), 8, 5)
    return root


def write_recipe(path: Path, root: Path, **changes: dict[str, Any]) -> Path:
    settings: dict[str, Any] = {
        "task": "segment",
        "model": {"name": "tailprop_pico", "drop_path": 0.2, "args": NARROW},
        "segmenter": {"channels": 16, "aux_channels": 8},
        "data": {"root": str(root), "short_px": 64, "long_px": 64, "workers": 0},
        "augment": {"crop_px": 48},
        "inference": {"window_px": 48, "stride_px": 32},
        "optim": {"epochs": 2, "batch": 2, "lr": 1e-3, "lr_batch": None, "warmup_epochs": 0, "decay": "poly", "min_lr": 0},
        "run": {"threads": 1, "device": "cpu", "log_every": 1, "save_every": 1, "tensorboard": False},
    }
    settings = {k: (v | changes.get(k, {}) if isinstance(v, dict) else v) for k, v in settings.items()}
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture(scope="module")
def run(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    recipe = write_recipe(folder / "small.yaml", scenes)
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(folder / "run")]) == 0
    return folder / "run"


def test_training_leaves_a_whole_run_folder(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "manifest.json", "model.safetensors", "learning.png", "pictures.jpg"} <= names
    assert {"miou", "pixel_accuracy", "class_accuracy"} <= last_row(run).keys()
    assert json.loads((run / "manifest.json").read_text())["examples"] == {"train": 8, "validation": 5}
    assert load_segmenter(str(run)).classes == ("ground", *SHAPES)


def test_a_stopped_run_ends_with_the_same_weights(
    run: Path, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", scenes)
    stop_and_go_on(recipe, tmp_path / "again", 3, monkeypatch)
    assert_same_run(run, tmp_path / "again")


def test_two_processes_train_and_evaluate_exactly(scenes: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", scenes, optim={"epochs": 1})
    done = launch(["train", str(recipe), "--run.out", str(tmp_path / "run")], processes=2)
    assert done.returncode == 0, done.stderr
    assert len(losses(tmp_path / "run")) == 2
    args = ["eval", str(tmp_path / "run"), "--device", "cpu", "--threads", "1", "--out", str(tmp_path / "alone.json")]
    assert tailprop_cli.main(args) == 0
    alone, together = json.loads((tmp_path / "alone.json").read_text()), last_row(tmp_path / "run")
    names = ("miou", "pixel_accuracy", "class_accuracy")
    assert [alone[name] for name in names] == [together[name] for name in names]  # whole numbers are summed: no tolerance


def test_eval_matches_classes_by_name(run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    shutil.copytree(scenes, other)
    names = (other / "objectInfo150.txt").read_text().splitlines()[1:]
    (other / "objectInfo150.txt").unlink()
    (other / "classes.txt").write_text("\n".join(row.split("\t")[-1] for row in names[::-1]) + "\n")  # from 0 on, backwards
    for path in (other / "annotations" / "validation").iterdir():
        labels = np.asarray(Image.open(path)).astype(int)
        Image.fromarray(np.where(labels == 0, 255, len(names) - labels).astype(np.uint8)).save(path)
    found = []
    for more in (["--data.root", str(scenes)], ["--data.root", str(other), "--data.first-label", "0"]):
        out = tmp_path / "numbers.json"
        assert tailprop_cli.main(["eval", str(run), "--device", "cpu", *more, "--out", str(out)]) == 0
        found.append(json.loads(out.read_text()))
    assert found[0] == found[1]
    assert "mean IoU" in capsys.readouterr().out
    (other / "classes.txt").write_text("unicorn\n")
    assert tailprop_cli.main(["eval", str(run), "--data.root", str(other), "--data.first-label", "0"]) == 2
    assert "classes that the segmenter does not know: unicorn" in capsys.readouterr().err


def test_predict_writes_label_maps_and_overlays(
    run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    odd = tmp_path / "odd.jpg"
    Image.new("RGB", (77, 41), "teal").save(odd)
    out = tmp_path / "out"
    args = ["predict", str(run), str(scenes / "images" / "validation"), str(odd), str(tmp_path / "broken.jpg")]
    args += ["--out", str(out), "--device", "cpu", "--inference.scales", "0.75", "1", "--inference.flip", "True"]
    assert tailprop_cli.main(args) == 0
    assert "skipped" in capsys.readouterr().err
    labels = np.asarray(Image.open(out / "odd.png"))
    assert labels.shape == (41, 77)
    assert 1 <= labels.min() <= labels.max() <= 7  # the numbers of the training data
    with Image.open(out / "odd_overlay.jpg") as drawn:
        assert drawn.width == 5 * 77  # enlarged
        assert drawn.height > 5 * 41  # a legend below
    assert (out / "classes.txt").read_text().split() == ["ground", *SHAPES]
    # What was written can be read as data; compared with itself it is perfect.
    data = ["--data.root", str(tmp_path), "--data.val-images", str(scenes / "images" / "validation")]
    data += ["--data.val-labels", str(out), "--data.classes", str(out / "classes.txt"), "--data.on-broken", "skip"]
    data += ["--inference.scales", "0.75", "1", "--inference.flip", "True", "--out", str(tmp_path / "self.json")]
    assert tailprop_cli.main(["eval", str(run), "--device", "cpu", *data]) == 0
    assert json.loads((tmp_path / "self.json").read_text())["miou"] == 100
    capsys.readouterr()
    assert tailprop_cli.main(args) == 2  # a label map that is there may be somebody's work
    assert "give --overwrite" in capsys.readouterr().err
    assert tailprop_cli.main([*args, "--on-broken", "stop", "--overwrite"]) == 2
    capsys.readouterr()
    Image.new("RGB", (64, 64)).save(tmp_path / "own.png")
    assert tailprop_cli.main(["predict", str(run), str(tmp_path / "own.png"), "--out", str(tmp_path), "--device", "cpu"]) == 2
    assert "would be written over" in capsys.readouterr().err


def test_eval_names_what_it_could_not_use(run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    for folder in ("images", "annotations"):
        (root / folder / "validation").mkdir(parents=True)
    shutil.copy(scenes / "objectInfo150.txt", root)
    picture = min((scenes / "images" / "validation").iterdir())
    shutil.copy(picture, root / "images" / "validation")
    Image.new("L", (64, 64), 77).save(root / "annotations" / "validation" / f"{picture.stem}.png")
    for how in ("stop", "skip"):
        assert tailprop_cli.main(["eval", str(run), "--data.root", str(root), "--data.on-broken", how, "--device", "cpu"]) == 2
        assert f"{picture.stem}.png: it has labels that are no class: 77" in capsys.readouterr().err


def test_a_long_narrow_picture_gets_a_legend() -> None:
    page = with_legend(Image.new("RGB", (30, 6000)), np.array([180_000]), ("sky",))
    assert page.height < 65_500


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("label", "ADE_train_00000001.png: it has labels that are no class: 77 (4096 pixels); the 7 classes have 1 to 7"),
        ("size", "ADE_train_00000001.png: it is 32x32, its picture"),
        ("missing", "ADE_train_00000001.jpg: its label map"),
        ("unreadable", "ADE_train_00000001.jpg: not a picture"),
    ],
)
def test_damage_stops_a_run_or_is_left_out(
    damage: str, message: str, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    shutil.copytree(scenes, root)
    picture = root / "images" / "training" / "ADE_train_00000001.jpg"
    labels = root / "annotations" / "training" / "ADE_train_00000001.png"
    if damage == "label":
        Image.new("L", (64, 64), 77).save(labels)
    elif damage == "size":
        Image.new("L", (32, 32), 1).save(labels)
    elif damage == "missing":
        labels.unlink()
    else:
        picture.write_bytes(b"")
    recipe = write_recipe(tmp_path / "r.yaml", root, optim={"epochs": 1})
    args = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert tailprop_cli.main(args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "--data.on-broken skip" in error
    assert tailprop_cli.main([*args, "--data.on-broken", "skip", "--run.overwrite"]) == 0
    assert message in capsys.readouterr().err
    assert last_row(tmp_path / "run")["broken"] == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "ade20k_upernet_tiny"], "--data.root is missing"),
        (["train", "ade20k_upernet_tiny", "--data.root", "nowhere"], "no folder nowhere"),
        (["train", "ade20k_upernet_tiny", "--data.root", "."], "no folder images/training with the pictures"),
        (["train", "shapes_upernet", "--optim.batch", "1"], "batch norm needs two pictures at once"),
        (["train", "shapes_upernet", "--inference.stride-px", "600"], "leaves gaps between windows of 512 px"),
        (["train", "shapes_upernet", "--model.name", "resnet_zero"], "timm has no model 'resnet_zero'"),
        (["bench", "segment", "--models", "tailprop_huge"], "timm has no model 'tailprop_huge'"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tailprop_cli.main(args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_bench_writes_what_it_measured(tmp_path: Path) -> None:
    out = tmp_path / "bench.csv"
    size = ["--height", "64", "--width", "96", "--rounds", "1", "--threads", "1", "--segmenter.channels", "16"]
    assert tailprop_cli.main(["bench", "segment", "--models", "tailprop_pico", "convnext_atto", *size, "--out", str(out)]) == 0
    header, first, second = out.read_text().splitlines()
    assert header.startswith("model,parameters,macs,paper_gmacs,over_paper,img_per_s_best")
    assert first.startswith("tailprop_pico,")
    assert float(first.split(",")[7]) == 1.0
    assert second.startswith("convnext_atto,")
