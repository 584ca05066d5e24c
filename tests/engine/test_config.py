"""Settings, recipes, and error messages of the command line about them."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from PIL import Image

import tailprop_cli
from tailprop.engine.optim import build_optimizer, build_schedule
from tailprop.engine.options import parse_options
from tailprop.engine.recipes import find_recipe, read_recipe, recipe_names
from tailprop.engine.settings import build, config_hash, to_dict
from tailprop.tasks import find_spec
from tailprop.tasks.classify.augment import BatchAugment, eval_transform, operations, train_transforms
from tailprop.tasks.classify.config import AugmentConfig, DataConfig
from tailprop.tasks.classify.task import _mixup
from tests.helpers.runs import assert_refused, write_recipe


def load(name: str) -> Any:
    values = read_recipe(find_recipe(name))
    return build(find_spec(values["task"]).config_type(), values)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_round_trips(name: str) -> None:
    config = load(name)
    assert build(type(config), to_dict(config)) == config
    again = yaml.safe_load(yaml.safe_dump(to_dict(config)))
    assert config_hash(to_dict(build(type(config), again))) == config_hash(to_dict(config))  # as for a resumed run


def test_list_of_recipes() -> None:
    wanted = {"imagenet1k_tiny", "imagenet1k_small", "imagenet1k_base", "digits", "cifar10", "imagenette", "finetune_folder"}
    assert wanted <= set(recipe_names())


@pytest.mark.parametrize(("size", "drop_path", "paper"), [("tiny", 0.1, 82.9), ("small", 0.3, 84.1), ("base", 0.5, 84.4)])
def test_imagenet_recipes_match_the_paper(size: str, drop_path: float, paper: float) -> None:
    """Appendix, Image Classification: every setting, checked where it takes effect."""
    config = load(f"imagenet1k_{size}")
    assert (config.data.size_px, config.data.eval_resize_px, config.data.num_classes) == (224, 256, 1000)
    assert config.run.precision == "bf16"
    assert config.paper_top1 == {config.model.name: paper}

    with torch.device("meta"):
        model = timm.create_model(config.model.name)
    assert model.stages[-1].layers[-1].drop_path.rate == pytest.approx(drop_path)
    optim = config.optim
    optimizer = build_optimizer(model, optim)
    assert type(optimizer) is torch.optim.AdamW
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.08}
    assert all(p.ndim > 1 for group in optimizer.param_groups if group["weight_decay"] for p in group["params"])
    assert all(group["betas"] == (0.9, 0.999) for group in optimizer.param_groups)
    assert (optim.clip_grad, optim.grad_accum_steps, optim.epoch_steps, config.run.ema) == (5.0, 1, None, 0.0)

    steps, processes = 1_281_167 // 1024, 8
    schedule = build_schedule(config.optim, steps, processes)
    assert schedule.steps == 300 * steps
    assert schedule.at(20 * steps) == pytest.approx(5e-4 * 1024 / 512)  # after 20 epochs of warm-up
    assert schedule.at(10 * steps) == pytest.approx(5e-4 * 1024 / 512 / 2, rel=1e-3)
    assert schedule.at(160 * steps) == pytest.approx((1e-3 + 5e-6) / 2)  # half of the cosine
    assert schedule.at(300 * steps) == pytest.approx(5e-6)


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
def test_imagenet_augmentation_matches_the_paper(size: str) -> None:
    config = load(f"imagenet1k_{size}")
    _, resize, crop, *_ = eval_transform(config.data, config.augment).transforms
    assert (resize.size, tuple(crop.size)) == (256, (224, 224))
    (transform,) = train_transforms(config.data, config.augment)
    assert (transform.side, transform.scale, transform.flip) == (224, (0.08, 1.0), 0.5)
    randaugment: Any = transform.policy
    assert [op.magnitude for op in randaugment.ops] == [9] * len(randaugment.ops)
    assert {op.magnitude_std for op in randaugment.ops} == {0.5}
    increasing = {"Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness"}  # inc1: more is always stronger
    names = {op.name for op in randaugment.ops}
    assert {f"{name}Increasing" for name in increasing} <= names
    assert not increasing & names
    finish = BatchAugment(config.augment, 3, torch.device("cpu"))
    assert finish.erase_prob == 0.25
    assert config.augment.color_jitter == 0.4
    assert finish.jitter == 0  # RandAugment replaces it, as in timm
    erased = finish(torch.full((400, 3, 32, 32), 128, dtype=torch.uint8), range(400))
    changed = (erased != erased[:, :, :1, :1]).flatten(1).any(1)
    assert changed.float().mean().item() == pytest.approx(0.25, abs=0.08)
    mixup = _mixup(config.augment, 1000)
    assert mixup is not None
    assert (mixup.mixup_alpha, mixup.cutmix_alpha, mixup.label_smoothing, mixup.mix_prob) == (0.8, 1.0, 0.1, 1.0)


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "rand-m9-mstd0.5", "original", "v0", "augmix-m9-mstd0.5"])
def test_policy_operations_work_at_full_magnitude(policy: str) -> None:
    """With noise the magnitude reaches 10: timm then requests 0 bits in Posterize, which Pillow rejects."""
    (transform,) = train_transforms(DataConfig(size_px=32), AugmentConfig(auto_augment=policy))
    found = operations(transform.policy)
    assert any(op.name.startswith("Posterize") for op in found)
    image = Image.new("RGB", (20, 20), (200, 150, 100))
    for op in found:
        for op.magnitude in (0, 10):
            op.prob, op.magnitude_std = 1.0, 0
            assert op(image).size == (20, 20)
        if op.name == "PosterizeIncreasing":
            assert op(image).getextrema() == ((0, 0),) * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(optim={"learning_rate": 1.0}), "unknown setting optim.learning_rate"),
        (dict(optim={"warmup_epoch": 1}), "unknown setting optim.warmup_epoch; did you mean optim.warmup_epochs?"),
        (dict(optim={"epochs": "many"}), "optim.epochs must be of type int, got 'many'"),
        (dict(optim={"betas": [0.9]}), "optim.betas must be a list of 2"),
        (dict(run={"precision": "fp8"}), "run.precision must be one of fp32, bf16, fp16, got 'fp8'"),
        (dict(data={"source": "cloud"}), "data.source must be one of folder, parquet, timm, digits"),
    ],
)
def test_invalid_recipe(changes: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path / "r.yaml", **changes)
    assert tailprop_cli.main(["train", str(recipe)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["imagenet1k_tyny"], "did you mean imagenet1k_tiny?"),
        (["nowhere.yaml"], "no recipe file nowhere.yaml"),
        (["imagenette"], "source parquet needs --data.root"),
        (["imagenette", "--data.root", "nowhere"], "no folder nowhere"),
        (["digits", "--optim.batch-size", "5000"], "a global batch of 5000 is larger than the 1198 training examples"),
        (["digits", "--optim.lr", "nan"], "optim.lr must be finite"),
        (["digits", "--optim.clip-grad", "-1"], "optim.clip_grad must be positive"),
        (["digits", "--optim.lr-base-size", "0"], "optim.lr_base_size must be at least 1"),
        (["digits", "--augment.auto-augment", "foo"], "must be a timm policy"),
        (["digits", "--augment.interpolation", "foo"], "unknown augment.interpolation 'foo'"),
        (["digits", "--augment.smoothing", "7"], "augment.smoothing must be between 0 and 1"),
        (["digits", "--run.seed", "-1"], "run.seed must be at least 0"),
        (["digits", "--run.device", "cuda"], "no CUDA device is visible"),
        (["digits", "--model.name", "resnet_zero"], "timm has no model 'resnet_zero'"),
        (["digits", "--model.name", "resnet50.nope"], "cannot create resnet50.nope: Invalid pretrained tag"),
        (
            ["digits", "--model.in-chans", "4", "--augment.auto-augment", "rand-m9"],
            "RandAugment does not support alpha channels",
        ),
        (["digits", "--model.name", "tailprop_pic"], "timm has no model 'tailprop_pic'; did you mean tailprop_pico?"),
        (["."], "the folder . has no config.yaml"),
        (["digits", "--data.source", "timm", "--data.name", "torch/cifar10"], "timm's torch/cifar10 needs --data.root"),
        (["imagenette", "--data.root", __file__], "test_config.py is a file, not a folder"),
        (["digits", "--model.init", "nowhere.pt"], "no checkpoint at nowhere.pt"),
        (["digits", "--optim.batch-size", "33", "--augment.mixup", "0.2"], "even --optim.batch"),
    ],
)
def test_invalid_command(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tailprop_cli.main(["train", *args]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--optim.epoch", "--optim.epochs"),
        ("--lr", "--optim.lr"),
        ("--optim.learning-rate", "--optim.lr"),
        ("--batch_size", "--optim.batch-size"),
        ("--img-size", "--data.size-px"),
        ("--run.epochs", "--optim.epochs"),
    ],
)
def test_unknown_option_suggests_the_closest(option: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["train", "digits", option, "2"], f"unknown option {option}; did you mean {expected}?", capsys)


def test_missing_argument_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["eval"], "tailprop eval needs CHECKPOINT (A run folder, a weights file", capsys)


def test_only_rank_0_prints_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        assert tailprop_cli.main(["train", "digits", "--optim.epohs", "1"]) == 2
        assert capsys.readouterr().err.count("\n") == lines


@pytest.mark.parametrize("value", ["inf", "1e309", "nan", "-inf"])
@pytest.mark.parametrize(
    "option", ["lr", "min-lr", "scale-lr", "weight-decay", "gamma", "muon-lr-scale", "clip-grad", "warmup-epochs"]
)
def test_rates_must_be_finite(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["train", "digits", f"--optim.{option}={value}"], f"optim.{option.replace('-', '_')} must be finite", capsys)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--optim.sched", "steps", "--optim.milestones", "inf"], "optim.milestones must be finite"),
        (["--optim.sched", "steps", "--optim.milestones", "1e308"], "optim.milestones is too large"),
        (["--optim.warmup-epochs", "1e308"], "optim.warmup_epochs is too large"),
        (["--optim.lr", "1e308", "--optim.lr-base-size", "1"], "times the global batch over optim.lr_base_size is not finite"),
        (["--data.workers", "99999999999999999999"], "data.workers is too large"),
        (["--data.workers", "9999"], "data.workers must be between 0 and 1024"),
        (["--data.cache-gb", "inf"], "data.cache_gb must be finite"),
        (["--run.out="], "an option is given an empty value"),
        (["--run.out", ""], "an option is given an empty value"),
        (["--model.args", f"depths={'[' * 2000}"], "the value of depths is not YAML: it is nested too deeply"),
        (["--model.args", "a=1", "a.b=2"], "a.b is given a value and a part with a value"),
        (["--model.args", "depths=[1, 2147483648]"], "model.args has the number 2147483648, which is too large"),
        (["--model.args", "checkpoint_path=x.pt"], "model.args checkpoint_path is not supported"),
    ],
)
def test_values_that_mean_nothing(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(["train", "digits", *args], message, capsys)
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: {out: ''}", "run.out is empty"),
        ("task: [1]", "r.yaml: unknown task [1]; choose one of"),
        ("task: {a: 1}", "r.yaml: unknown task {'a': 1}; choose one of"),
        ("optim: {lr: .inf}", "optim.lr must be finite"),
        ("model: {args: {mixer_args: {scale_init: .nan}}}", "model.args.mixer_args.scale_init must be finite"),
        ('model: {name: "a\\x1b[2J"}', "model.name has control characters: 'a\\x1b[2J'"),
        ('run: {out: "a\\u202Eb"}', "run.out has control characters: 'a\\u202eb'"),
        ("[" * 2000, "r.yaml is not YAML: it is nested too deeply"),
        ("optim: {epochs: " + "9" * 30 + "}", "optim.epochs is too large"),
    ],
)
def test_recipe_values_that_mean_nothing(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(text)
    assert_refused(["train", "r.yaml", "--data.source", "digits"], message, capsys)
    assert {path.name for path in tmp_path.iterdir()} == {"r.yaml"}


def test_every_check_of_settings_and_options_looks_at_the_numbers() -> None:
    """Each by itself: settings also come from Python, and options also belong to commands without settings."""
    config = load("digits")
    with pytest.raises(ValueError, match=r"optim\.lr must be finite, got inf"):
        replace(config, optim=replace(config.optim, lr=math.inf)).check()
    with pytest.raises(ValueError, match=r"size must be finite, got nan"):
        parse_options(_Options, ["--size", "nan"], "x")


@dataclass(frozen=True)
class _Options:
    """Options of a command."""

    size: float = 1.0
