"""Accuracy on sketches, natural adversarial examples and corrupted images."""

import csv
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, ImageNetInfo
from torch import Tensor, nn

import tailprop_cli
from tailprop.engine.checkpoint import save_weights
from tailprop.engine.config import ModelConfig
from tailprop.runtime.distributed import World
from tailprop.studies import robustness
from tailprop.studies.corruptions import CORRUPTIONS
from tailprop.studies.robustness import Row, _print, _rows, imagenet_indices, measure, subset_indices
from tailprop.studies.robustness_options import Robustness
from tailprop.tasks.classify.config import ClassifyConfig, DataConfig
from tailprop.tasks.classify.evaluate import evaluate_on
from tailprop.tasks.classify.load import ImageClassifier
from tailprop.tasks.classify.metrics import Accuracy
from tailprop.tasks.classify.options import DataChoice

ALONE = World(0, 1, torch.device("cpu"))
SYNSETS = ImageNetInfo().label_names()
SMALL = DataConfig(size_px=32, resize_px=32, workers=0)


class Answers(nn.Module):
    """A model that measures the grey level of an image and has known outputs for each level."""

    def __init__(self, num_classes: int, answer: Callable[[int], list[int]]) -> None:
        super().__init__()
        self.num_classes, self.answer = num_classes, answer

    def forward(self, images: Tensor) -> Tensor:
        logits = torch.zeros(len(images), self.num_classes)
        greys = (images[:, 0].mean((1, 2)) * IMAGENET_DEFAULT_STD[0] + IMAGENET_DEFAULT_MEAN[0]) * 255
        for row, grey in zip(logits, greys.round().int().tolist(), strict=True):
            for rank, index in enumerate(self.answer(grey)):
                row[index] = 9.0 - rank
        return logits


def classifier(num_classes: int, answer: Callable[[int], list[int]], classes: tuple[str, ...] | None = None) -> ImageClassifier:
    names = classes or (tuple(SYNSETS) if num_classes == 1000 else tuple(map(str, range(num_classes))))
    settings = ClassifyConfig(model=ModelConfig(name="stub"), data=SMALL)
    return ImageClassifier(Answers(num_classes, answer).eval(), settings, names)


def write_greys(root: Path, greys: dict[str, list[int]]) -> Path:
    """Folders of plain images."""
    for name, levels in greys.items():
        (root / name).mkdir(parents=True)
        for level in levels:
            Image.new("RGB", (32, 32), (level, level, level)).save(root / name / f"{level}.png")
    return root


def test_imagenet_a_is_a_subset_by_index() -> None:
    expected = [int(i) for i in (files("timm.data") / "_info" / "imagenet_a_indices.txt").read_text().split()]
    assert list(subset_indices("imagenet_a")) == expected
    assert len(set(expected)) == 200


def test_classes_are_found_by_name_not_position() -> None:
    names = [SYNSETS[817], SYNSETS[6], "tench, Tinca tinca", "42", "unicorn", "crane"]
    assert imagenet_indices(names) == [817, 6, 0, 42, None, None]
    described = ImageNetInfo().label_descriptions()
    assert imagenet_indices(described) == list(range(1000))  # both cranes, by position


def test_the_second_crane_of_a_snapshot() -> None:
    """Hugging Face needs unique names; lists that shorten both bathing suits to one name are ambiguous."""
    names = ImageNetInfo().label_descriptions()
    assert (names[134], names[517]) == ("crane", "crane")
    names[517] = "crane2"
    assert len(set(names)) == 1000
    assert imagenet_indices(names) == list(range(1000))
    assert (names[638], names[639]) == ("maillot", "maillot, tank suit")
    names[639] = "maillot"
    assert imagenet_indices(names)[637:641] == [637, 638, None, 640]


def test_imagenet_a_accuracy_is_known(tmp_path: Path) -> None:
    """Six images of three classes, four correct; an output outside of the 200 is always the highest and must not count."""
    stingray, robin, balloon = 6, 15, 417
    right = {10: stingray, 20: stingray, 30: robin, 40: stingray, 50: balloon, 60: robin}
    outside = next(i for i in range(1000) if i not in subset_indices("imagenet_a"))
    model = classifier(1000, lambda grey: [outside, right[grey]])
    root = write_greys(tmp_path, {SYNSETS[balloon]: [50, 60], SYNSETS[stingray]: [10, 20], SYNSETS[robin]: [30, 40]})
    (root / "README.txt").write_text("the official archive has one")
    (row,) = measure(Robustness("stub", imagenet_a=root), model, ALONE)
    assert (row.data, row.severity, row.count, row.classes) == ("ImageNet-A", 0, 6, 3)
    assert row.top1 == pytest.approx(100 * 4 / 6)


def test_sketch_uses_all_outputs_and_limit_is_evenly_spaced(tmp_path: Path) -> None:
    root = write_greys(tmp_path, {SYNSETS[999]: [10, 20], SYNSETS[0]: [30, 40], SYNSETS[500]: [50, 60]})
    right = {10: [999], 20: [1, 2, 3, 4, 999], 30: [0], 40: [0], 50: [1], 60: [500]}
    model = classifier(1000, lambda grey: right[grey])
    (row,) = measure(Robustness("stub", sketch=root), model, ALONE)
    assert row.count == 6
    assert [row.top1, row.top5] == pytest.approx([100 * 4 / 6, 100 * 5 / 6])
    (row,) = measure(Robustness("stub", sketch=root, limit=3), model, ALONE)
    assert (row.count, row.classes) == (3, 3)
    assert row.top1 == pytest.approx(100 * 2 / 3)  # 30, 50 and 10
    assert [len(_rows(100, limit)) for limit in (0, 1, 60, 99, 100, 1000)] == [100, 1, 50, 50, 100, 100]


def test_sketch_as_a_snapshot_with_a_train_split_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    names = ["goldfish, Carassius auratus", "tench, Tinca tinca"]  # ImageNet's 1 and 0
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=names))
    rows = dict(image=[Image.new("RGB", (32, 32), (grey,) * 3) for grey in (10, 20)], label=[0, 1])
    datasets.Dataset.from_dict(rows, features).to_parquet(tmp_path / "train-00000-of-00001.parquet")
    (row,) = measure(Robustness("stub", sketch=tmp_path), classifier(1000, {10: [1], 20: [0]}.__getitem__), ALONE)
    assert (row.count, row.top1) == (2, 100)


def test_accuracy_under_corruption_is_known(tmp_path: Path) -> None:
    """Dark and bright images classified by a threshold: brightness makes all bright, contrast changes nothing."""
    root = write_greys(tmp_path / "val", {"bright": [200, 210], "dark": [90, 100]}).parent
    write_greys(root / "train", {"bright": [1], "dark": [2]})
    model = classifier(2, lambda grey: [int(grey < 150)])
    options = Robustness("stub", corrupt=("brightness", "contrast"), severities=(5, 1, 5), data=DataChoice(root=root))
    found = {(row.data, row.severity): row.top1 for row in measure(options, model, ALONE)}
    assert found == {
        ("clean", 0): 100,
        ("brightness", 1): 100,
        ("brightness", 5): 50,
        ("contrast", 1): 100,
        ("contrast", 5): 100,
    }


def test_model_with_unsupported_channels(tmp_path: Path) -> None:
    root = write_greys(tmp_path, {"bright": [200], "dark": [90]})
    stub = classifier(2, lambda _grey: [0])
    two_channels = replace(stub, settings=replace(stub.settings, model=ModelConfig(name="stub", in_chans=2)))
    with pytest.raises(ValueError, match=r"stub takes 2 channels \(model.in_chans\); images have 1, 3 or 4"):
        measure(Robustness("stub", corrupt=("fog",), data=DataChoice(root=root)), two_channels, ALONE)


def test_broken_images_are_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_greys(tmp_path, {"bright": [200], "dark": [90]})
    for name in ("a.png", "b.png"):
        (root / "dark" / name).write_bytes(b"no image")
    options = Robustness("stub", corrupt=("contrast",), data=DataChoice(root=root, on_broken="skip"))
    rows = measure(options, classifier(2, lambda grey: [int(grey < 150)]), ALONE)
    assert [row.broken for row in rows] == [2] * 6
    printed = capsys.readouterr().err.splitlines()
    named = [line for line in printed if line.startswith("skipped")]
    assert named == [f"skipped dark/{name}.png: not an image" for name in "ab"]


def test_interruption_keeps_measured_rows(
    call: Callable[..., tuple[int, str]], ten_classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = []

    def stop_at_the_third(*args: Any, title: str, **settings: Any) -> Accuracy:
        titles.append(title)
        if len(titles) == 3:
            raise ValueError("the power fails")
        return evaluate_on(*args, title=title, **settings)

    monkeypatch.setattr(robustness, "evaluate_on", stop_at_the_third)
    data = ("--data.source", "digits", "--data.size-px", 32, "--data.workers", 0, "--limit", 2, "--device", "cpu")
    code, _ = call(ten_classes, "--corrupt", "contrast", "--severities", 1, 2, *data, "--out", tmp_path / "r.csv")
    assert code == 2
    rows = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    assert [(row["data"], row["severity"]) for row in rows] == [("clean", "0"), ("contrast", "1")]
    assert [path.name for path in tmp_path.iterdir()] == ["r.csv"]


def test_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    rows = [Row("ImageNet-A", 0, 36.0, 60.0, 7500, 200, 0), Row("clean", 0, 84.0, 96.0, 50, 40, 1)]
    rows += [Row("fog", 1, 70.0, 80.0, 50, 40, 1), Row("fog", 2, 60.0, 80.0, 50, 40, 1), Row("snow", 1, 50.0, 70.0, 50, 40, 1)]
    rows += [Row("snow", 2, 40.0, 70.0, 50, 40, 1)]
    _print(rows, "tailprop_base", (1, 2))
    printed = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    assert cells == [
        ["ImageNet-A", "7500", "-", "-", "36.00", "37.2"],
        ["clean", "50", "-", "-", "84.00", "-"],
        ["fog", "50", "70.00", "60.00", "65.00", "-"],
        ["snow", "50", "50.00", "40.00", "45.00", "-"],
        ["mean over corruptions", "50", "60.00", "50.00", "55.00", "-"],
    ]
    assert "paper" in printed
    assert "up to 1 broken image skipped" in printed
    _print([Row("ImageNet-A", 0, 36.0, 60.0, 9, 3, 0)], "tailprop_tiny", (1, 2))
    printed = capsys.readouterr().out
    assert "paper" not in printed
    assert "ImageNet-A: only 3 of its 200 classes have images here" in printed


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    monkeypatch.setenv("COLUMNS", "160")

    def run(*args: object) -> tuple[int, str]:
        code = tailprop_cli.main(["robustness", *map(str, args)])
        captured = capsys.readouterr()
        return code, captured.err if code else captured.out

    return run


@pytest.fixture(scope="module")
def ten_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder, whose settings contain the number of channels."""
    folder = tmp_path_factory.mktemp("run")
    model = timm.create_model("tailprop_pico", num_classes=10)
    save_weights(folder / "model.safetensors", model, {"architecture": "tailprop_pico"})
    settings = {"model": {"name": "tailprop_pico"}, "data": {}, "augment": {}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder


def test_command(call: Callable[..., tuple[int, str]], ten_classes: Path, tmp_path: Path) -> None:
    data = ("--data.source", "digits", "--data.size-px", 32, "--data.workers", 0, "--limit", 4, "--device", "cpu")
    out = tmp_path / "new" / "robustness.csv"
    code, printed = call(ten_classes, "--corrupt", "all", "--severities", 1, 5, *data, "--out", out)
    assert code == 0, printed
    assert all(name in printed for name in (*CORRUPTIONS, "clean", "mean over corruptions", "tailprop_pico"))
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [(row["data"], row["severity"]) for row in rows] == [("clean", "0")] + [(n, s) for n in CORRUPTIONS for s in "15"]
    assert {(row["count"], row["size_px"], row["model"]) for row in rows} == {("4", "32", "tailprop_pico")}
    assert all(0 <= float(row["top1"]) <= float(row["top5"]) <= 100 for row in rows)
    assert rows[0]["torch"] == torch.__version__
    assert rows[0]["commit"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "nothing to evaluate; give --sketch, --imagenet-a, --imagenet-r, --imagenet-v2, --imagenet-c or --corrupt"),
        (("--corrupt", "gausian_noise"), "unknown corruption 'gausian_noise'; did you mean 'gaussian_noise'?"),
        (("--corrupt", "jpeg"), "did you mean 'jpeg_compression'?"),
        (("--corrupt", "frost"), "frost needs photographs that are not shipped"),
        (("--corrupt", "fog", "--severities", "6"), "severity must be 1, 2, 3, 4 or 5, got 6"),
        (("--corrupt", "fog", "--severities"), "--severities is empty"),
        (("--corrupt", "fog", "--limit", "-1"), "limit must be at least 0"),
        (("--corrupt", "fog", "--batch-size", "0"), "batch_size must be at least 1"),
        (("--corrupt", "fog"), "needs --data.root"),
        (("--corrupt", "fog", "--out", "."), "--out . is a folder; name a file"),
        (("--sketch", "nowhere"), "no folder nowhere; --sketch takes the folder of the dataset"),
        (("--imagenet-a", "nowhere"), "no folder nowhere; --imagenet-a takes"),
        (("--imagenet-a", "."), "ImageNet-A needs a model with ImageNet's 1000 classes, but tailprop_pico has 10"),
    ],
)
def test_user_errors_in_one_line(
    call: Callable[..., tuple[int, str]], ten_classes: Path, args: tuple[str, ...], message: str
) -> None:
    code, err = call(ten_classes, *args)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_unknown_classes_are_named(tmp_path: Path) -> None:
    answer = classifier(1000, lambda _grey: [0])
    tench = write_greys(tmp_path / "a", {SYNSETS[6]: [10], SYNSETS[0]: [20]})
    with pytest.raises(ValueError, match="class 'n01440764' is not one of ImageNet-A's 200"):
        measure(Robustness("stub", imagenet_a=tench), answer, ALONE)
    cats = write_greys(tmp_path / "b", {"cat": [10]})
    with pytest.raises(ValueError, match="class 'cat' is not one of ImageNet-Sketch's 1000"):
        measure(Robustness("stub", sketch=cats), answer, ALONE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="expected one folder of images for each class"):
        measure(Robustness("stub", sketch=tmp_path / "empty"), answer, ALONE)


@pytest.mark.parametrize("classes", [tuple(reversed(SYNSETS)), tuple(f"plant {i}" for i in range(1000))])
def test_model_with_other_1000_classes_raises(classes: tuple[str, ...], tmp_path: Path) -> None:
    root = write_greys(tmp_path, {SYNSETS[6]: [10]})
    with pytest.raises(ValueError, match="needs ImageNet's order of classes, but output 0 is"):
        measure(Robustness("stub", imagenet_a=root), classifier(1000, lambda _grey: [0], classes), ALONE)
