"""Mask R-CNN: the model, COCO's numbers against pycocotools, and runs on generated scenes from training to prediction."""

import contextlib
import copy
import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from safetensors.torch import save_file

import tailprop_cli
from tailprop.coco_scores import METRICS, score_results, to_results
from tailprop.config import ModelConfig, build, find_recipe, read_recipe
from tailprop.data.coco import CocoSet, decode_masks, read_coco
from tailprop.data.scenes import encode_mask, write_coco
from tailprop.data.synthetic import SceneConfig
from tailprop.detector import Detector, DetectorConfig, create_detector, detector_macs
from tailprop.optim import build_optimizer, build_schedule
from tailprop.tasks.detect import DetectConfig
from tests.runs import assert_same_run, last_row, launch, losses, stop_and_go_on

SMALL = DetectorConfig(channels=16, box_width=32, mask_layers=1, anchor_px=(8, 16, 32, 64, 128), candidates=50, proposals=30)
SWIN = "swin_tiny_patch4_window7_224"
NARROW = dict(depths=[1, 1, 1, 1], dims=[8, 16, 24, 32])


def small_detector(name: str = "tailprop_pico", **args: Any) -> Detector:
    return create_detector(ModelConfig(name=name, args=args), 3, 64, 96, SMALL)[0]


def target(h: int, w: int) -> dict[str, torch.Tensor]:
    masks = torch.zeros(1, h, w, dtype=torch.uint8)
    masks[0, 10:40, 8:50] = 1
    return dict(boxes=torch.tensor([[8.0, 10, 50, 40]]), labels=torch.tensor([2]), masks=masks)


# The model


@pytest.mark.parametrize("name", ["tailprop_pico", "vheat_tiny", "waveformer_tiny", "convnext_atto", SWIN])
def test_any_backbone_every_parameter_any_size(name: str) -> None:
    model = small_detector(name)
    found = model.train()([torch.rand(3, 64, 96), torch.rand(3, 61, 77)], [target(64, 96), target(61, 77)])
    torch.stack(list(found.values())).sum().backward()
    unreached = [n for n, p in model.named_parameters() if p.grad is None]
    assert not unreached  # distributed training would wait for them
    with torch.no_grad():
        (found,) = model.eval()([torch.rand(3, 45, 91)])
    assert found["masks"].shape[1:] == (1, 45, 91)


def test_a_norm_on_every_stage() -> None:
    model = small_detector(**NARROW)
    assert [norm.weight.shape[0] for norm in model.backbone.norms] == [8, 16, 24, 32]
    seen: list[torch.Tensor] = []
    model.backbone.fpn.register_forward_pre_hook(lambda _, args: seen.extend(args[0].values()))
    with torch.no_grad():
        model.backbone(100 * torch.rand(1, 3, 64, 64))
    for stage in seen:
        assert stage.mean(1).abs().max() < 1e-4
        assert stage.var(1, correction=0).median() == pytest.approx(1, abs=0.05)


def test_a_picture_without_objects_trains() -> None:
    empty = dict(
        boxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.int64), masks=torch.zeros(0, 64, 64, dtype=torch.uint8)
    )
    model = small_detector(**NARROW).train()
    loss = torch.stack(list(model([torch.rand(3, 64, 64)], [empty]).values())).sum()
    loss.backward()
    assert torch.isfinite(loss)


def test_coordinates_stay_exact_under_autocast() -> None:
    model = small_detector(**NARROW).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        maps = model.backbone(torch.rand(1, 3, 64, 64))
        assert {m.dtype for m in maps.values()} == {torch.float32}
        scores, offsets = model.rpn.head(list(maps.values()))
        predicted = model.roi_heads.box_predictor(torch.rand(2, 32))
        assert {t.dtype for t in (*scores, *offsets, *predicted)} == {torch.float32}
        inner = model.rpn.head.conv(maps["0"])
    assert inner.dtype == torch.bfloat16  # the work itself is done in BF16


def test_decay_spares_norms_biases_and_what_the_backbone_excepts() -> None:
    model = small_detector(**NARROW)
    decay = {id(p): group["weight_decay"] for group in build_optimizer(model, 0.05).param_groups for p in group["params"]}
    spared = model.no_weight_decay()
    assert any(name.endswith("theta") for name in spared)
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.0 if parameter.ndim < 2 or name in spared else 0.05), name


def test_a_classifiers_checkpoint_starts_the_backbone(tmp_path: Path) -> None:
    classifier = timm.create_model("tailprop_pico", num_classes=5, **NARROW)
    save_file(classifier.state_dict(), tmp_path / "c.safetensors")
    config = ModelConfig(name="tailprop_pico", args=NARROW, init=str(tmp_path / "c.safetensors"))
    model, taken = create_detector(config, 3, 64, 96, SMALL)
    assert taken is not None
    assert not taken.fresh  # the whole backbone; only the classifier's own end is left over
    assert all(name.startswith(("norm.", "head.")) for name in taken.unused)
    stages = {k: v for k, v in model.body.state_dict().items() if k.startswith("stages")}
    assert all(torch.equal(v, classifier.state_dict()[k]) for k, v in stages.items())


def test_what_is_no_backbone_is_refused() -> None:
    with pytest.raises(ValueError, match="the pyramid wants 4, 8, 16, 32"):
        small_detector("vit_tiny_patch16_224")


@pytest.mark.parametrize(
    ("name", "published", "within"),
    [("convnext_tiny", 262, 0.005), (SWIN, 267, 0.005), ("tailprop_tiny", 271, 0.03)],
)
def test_multiply_adds_are_counted_as_published(name: str, published: int, within: float) -> None:
    """The papers of ConvNeXt and Swin, and ours, give these for Mask R-CNN at 1280x800."""
    with torch.device("meta"):
        model, _ = create_detector(ModelConfig(name=name), 80, 800, 1333, DetectorConfig())
    assert detector_macs(model) / 1e9 == pytest.approx(published, rel=within)


# COCO's numbers


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    write_coco(root, SceneConfig(size_px=64, crowd=0.3), 8, 6)
    return root


def validation_set(root: Path) -> CocoSet:
    return read_coco(root / "annotations" / "instances_val2017.json", root / "val2017")


def perfect(part: CocoSet) -> list[dict[str, Any]]:
    results = []
    for image in part.images:
        objects = [a for a in image.objects if not a["iscrowd"]]
        for a, mask in zip(objects, decode_masks(objects, image.width, image.height), strict=True):
            entry = dict(image_id=image.id, category_id=a["category_id"], bbox=a["bbox"], score=1.0)
            results.append(entry | dict(segmentation=encode_mask(mask)))
    return results


def disturbed(results: list[dict[str, Any]], generator: random.Random) -> list[dict[str, Any]]:
    changed = []
    for entry in results * 2:
        if generator.random() < 0.8:
            x, y, w, h = entry["bbox"]
            box = [x + generator.gauss(0, 2), y + generator.gauss(0, 2), w * generator.uniform(0.8, 1.2), h]
            category = entry["category_id"] if generator.random() < 0.8 else 1
            changed.append(entry | dict(bbox=box, category_id=category, score=generator.random()))
    return changed


def test_the_truth_scores_full_and_another_pictures_truth_nothing(scenes: Path) -> None:
    part = validation_set(scenes)
    truth, results = part.ground_truth(), perfect(part)
    full = score_results(truth, results)
    assert list(full) == list(METRICS)
    assert full["box_ap"] == full["mask_ap"] == full["box_ar100"] == pytest.approx(100)
    ids = [image.id for image in part.images]
    moved = [entry | dict(image_id=ids[(ids.index(entry["image_id"]) + 1) % len(ids)]) for entry in results]
    assert score_results(truth, moved)["box_ap"] < 5
    assert score_results(truth, moved)["mask_ap"] < 5
    assert score_results(truth, [])["box_ap"] == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_all_numbers_are_pycocotools(scenes: Path, seed: int) -> None:
    part = validation_set(scenes)
    truth, results = part.ground_truth(), disturbed(perfect(part), random.Random(seed))
    before = json.dumps(results)
    ours = score_results(truth, results)
    assert json.dumps(results) == before  # the file written afterwards is what was scored
    theirs: list[float] = []
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = copy.deepcopy(truth)
        known.createIndex()
        for kind in ("bbox", "segm"):
            evaluation = COCOeval(known, known.loadRes(json.loads(before)), kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            theirs += list(evaluation.stats)
    assert 5 < ours["box_ap"] < 95
    assert list(ours.values()) == pytest.approx([100 * n for n in theirs], abs=1e-6)


def test_results_are_in_cocos_format() -> None:
    masks = torch.zeros(1, 1, 20, 30)
    masks[0, 0, 5:10, 4:12] = 0.9
    found = dict(boxes=torch.tensor([[4.0, 5, 12, 10]]), labels=torch.tensor([2]), scores=torch.tensor([0.75]), masks=masks)
    (entry,) = json.loads(json.dumps(to_results(7, found, [3, 18])))
    assert entry["bbox"] == [4, 5, 8, 5]
    assert (entry["image_id"], entry["category_id"], entry["score"]) == (7, 18, 0.75)
    assert decode_masks([entry], 30, 20)[0, 5:10, 4:12].all()


# Recipes


@pytest.mark.parametrize("schedule", ["1x", "3x"])
@pytest.mark.parametrize(
    ("size", "drop_path", "paper"),
    [
        ("tiny", 0.1, {"1x": (46.2, 41.8), "3x": (47.8, 43.1)}),
        ("small", 0.3, {"1x": (47.4, 42.8), "3x": (49.4, 44.2)}),
        ("base", 0.5, {"1x": (48.2, 43.4), "3x": (50.3, 44.8)}),
    ],
)
def test_recipes_are_the_papers(size: str, drop_path: float, paper: dict[str, Any], schedule: str) -> None:
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


# Runs


def write_recipe(path: Path, root: Path, **changes: dict[str, Any]) -> Path:
    detector = {name: getattr(SMALL, name) for name in ("channels", "box_width", "mask_layers", "candidates", "proposals")}
    settings: dict[str, Any] = {
        "task": "detect",
        "model": {"name": "tailprop_pico", "drop_path": 0.2, "args": NARROW},
        "detector": detector | {"anchor_px": list(SMALL.anchor_px), "score": 0.0, "detections": 10},
        "data": {"root": str(root), "short_px": 64, "long_px": 64, "workers": 0},
        "augment": {"short_px": [48, 64]},
        "optim": {"epochs": 2, "batch": 2, "lr": 1e-3, "lr_batch": None, "warmup_epochs": 0, "warmup_steps": 2},
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


def test_training_leaves_a_whole_run_folder(run: Path, scenes: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "manifest.json", "model.safetensors", "learning.png", "pictures.jpg", "detections.json"} <= names
    row, part = last_row(run), validation_set(scenes)
    assert set(METRICS) <= row.keys()
    results = json.loads((run / "detections.json").read_text())
    assert len({entry["image_id"] for entry in results}) > 1
    assert score_results(part.ground_truth(), results)["box_ap"] == pytest.approx(row["box_ap"])


def test_a_stopped_run_ends_with_the_same_weights(
    run: Path, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", scenes)
    stop_and_go_on(recipe, tmp_path / "again", 3, monkeypatch)
    assert_same_run(run, tmp_path / "again")


def test_two_processes_train_and_evaluate_exactly(scenes: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "small.yaml", scenes, optim={"epochs": 1, "batch": 1})
    done = launch(["train", str(recipe), "--run.out", str(tmp_path / "run")], processes=2)
    assert done.returncode == 0, done.stderr
    args = ["eval", str(tmp_path / "run"), "--out", str(tmp_path / "1.json"), "--results", str(tmp_path / "r.json")]
    assert tailprop_cli.main(args) == 0  # alone
    alone, together = json.loads((tmp_path / "1.json").read_text()), last_row(tmp_path / "run")
    assert {name: alone[name] for name in METRICS} == pytest.approx({name: together[name] for name in METRICS})
    ours, theirs = ((tmp_path / "r.json").read_text(), (tmp_path / "run" / "detections.json").read_text())
    assert json.loads(ours) == json.loads(theirs)


def test_eval_matches_categories_by_name(run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    shutil.copytree(scenes, other)
    path = other / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    for entry in content["categories"]:
        entry["id"] *= 10
    for entry in content["annotations"]:
        entry["category_id"] *= 10
    path.write_text(json.dumps(content))
    for root, name in ((scenes, "a"), (other, "b")):
        assert tailprop_cli.main(["eval", str(run), "--data.root", str(root), "--out", str(tmp_path / f"{name}.json")]) == 0
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    content["categories"][0]["name"] = "unicorn"
    path.write_text(json.dumps(content))
    assert tailprop_cli.main(["eval", str(run), "--data.root", str(other)]) == 2
    assert "categories that the detector does not know: unicorn" in capsys.readouterr().err


def test_predict_draws_and_writes_coco(run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    picture = next((scenes / "val2017").iterdir())
    args = ["predict", str(run), str(picture), str(tmp_path / "broken.jpg"), "--score", "0", "--out", str(tmp_path / "out")]
    assert tailprop_cli.main(args) == 0
    assert "skipped" in capsys.readouterr().err
    with Image.open(tmp_path / "out" / f"{picture.stem}.jpg") as drawn:
        assert drawn.size == (384, 384)  # six times as large: names would hide what they name
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(tmp_path / "out" / "detections.json"))  # a whole file, which COCO's own reader takes
    annotations = coco.loadAnns(coco.getAnnIds())
    assert annotations
    assert all(coco.annToMask(a).shape == (64, 64) for a in annotations)
    assert tailprop_cli.main([*args, "--on-broken", "stop"]) == 2


def test_weights_without_their_run(run: Path, scenes: Path, tmp_path: Path) -> None:
    shutil.copy(run / "model.safetensors", tmp_path / "mine.safetensors")
    for name, where in (("run", run), ("mine", tmp_path / "mine.safetensors")):
        args = ["predict", str(where), str(scenes / "val2017"), "--score", "0", "--out", str(tmp_path / name)]
        assert tailprop_cli.main(args) == 0
    assert (tmp_path / "mine" / "detections.json").read_text() == (tmp_path / "run" / "detections.json").read_text()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("polygon", "annotation 1: its polygon is broken"),
        ("category", "annotation 1: its category 99 is unknown"),
        ("missing", "the picture is missing"),
        ("unreadable", "not a picture"),
    ],
)
def test_damage_stops_a_run_or_is_left_out(
    damage: str, message: str, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    shutil.copytree(scenes, root)
    path = root / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    if damage == "polygon":
        content["annotations"][0]["segmentation"] = [[1, 2, 3]]
    elif damage == "category":
        content["annotations"][0]["category_id"] = 99
    elif damage == "missing":
        (root / "train2017" / content["images"][0]["file_name"]).unlink()
    else:
        (root / "train2017" / content["images"][0]["file_name"]).write_bytes(b"")
    path.write_text(json.dumps(content))
    recipe = write_recipe(tmp_path / "r.yaml", root, optim={"epochs": 1})
    args = ["train", str(recipe), "--run.out", str(tmp_path / "run")]
    assert tailprop_cli.main(args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "--data.on-broken skip" in error
    assert tailprop_cli.main([*args, "--data.on-broken", "skip", "--run.overwrite"]) == 0
    assert message in capsys.readouterr().err
    assert last_row(tmp_path / "run")["broken"] == 1


def test_pictures_without_objects(scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    shutil.copytree(scenes, root)
    path = root / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    gone = {image["id"] for image in content["images"][:4]}
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] not in gone]
    path.write_text(json.dumps(content))
    recipe = write_recipe(tmp_path / "r.yaml", root, optim={"epochs": 1})
    for more, steps, said in (([], 2, True), (["--data.keep-empty"], 4, False)):
        out = tmp_path / str(steps)
        assert tailprop_cli.main(["train", str(recipe), "--run.out", str(out), *more]) == 0
        assert len(losses(out)) == steps
        assert ("4 of 8 training pictures show no object" in capsys.readouterr().out) == said


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "coco_maskrcnn_tiny_1x"], "--data.root is missing"),
        (["train", "coco_maskrcnn_tiny_1x", "--data.root", "nowhere"], "no annotation file nowhere/annotations"),
        (["train", "shapes_maskrcnn", "--detector.anchor-px", "8", "16"], "detector.anchor_px needs 5 sides"),
        (["train", "shapes_maskrcnn", "--model.name", "resnet_zero"], "timm has no model 'resnet_zero'"),
        (["train", "shapes_maskrcnn", "--data.long-px", "64"], "data.long_px must be at least 128"),
        (["bench", "detect", "--models", "tailprop_huge"], "timm has no model 'tailprop_huge'"),
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
    size = ["--height", "64", "--width", "96", "--rounds", "1", "--threads", "1", "--no-memory"]
    size += ["--detector.channels", "16", "--detector.proposals", "20", "--detector.detections", "5"]
    assert tailprop_cli.main(["bench", "detect", "--models", "tailprop_pico", "convnext_atto", *size, "--out", str(out)]) == 0
    header, first, second = out.read_text().splitlines()
    assert header.startswith("model,parameters,macs,paper_gmacs,over_paper,img_per_s_best")
    assert first.startswith("tailprop_pico,")
    assert float(first.split(",")[7]) == 1.0
    assert second.startswith("convnext_atto,")
