"""ImageNet-C, -R and -V2 from folders: known accuracies, published CEs, wrong folders."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tailprop_cli
from tailprop.studies.imagenet_c import ALEXNET_ERRORS, corruption_error, find_corruptions
from tailprop.studies.robustness import _print_all, measure
from tailprop.studies.robustness_options import Robustness
from tailprop.tasks.classify.config import DataConfig
from tests.helpers.folders import make_folder
from tests.helpers.runs import assert_refused, write_recipe
from tests.studies.test_robustness import ALONE, SYNSETS, classifier, write_greys

# torchvision's ResNet-50: mean top-1 over the severities, and CE, as published beside its evaluation
RESNET50 = {
    "brightness": (68.02, 56.64),
    "contrast": (39.06, 71.43),
    "defocus_blur": (38.75, 74.71),
    "elastic_transform": (45.25, 84.75),
    "fog": (45.83, 66.11),
    "frost": (38.14, 74.84),
    "gaussian_noise": (29.29, 79.77),
    "glass_blur": (26.79, 88.61),
    "impulse_noise": (23.81, 82.58),
}


@pytest.mark.parametrize("name", RESNET50)
def test_errors_of_a_resnet_are_the_published_ones(name: str) -> None:
    top1, published = RESNET50[name]
    assert corruption_error(name, [top1 - 2, top1 - 1, top1, top1 + 1, top1 + 2]) == pytest.approx(published, abs=0.01)


def write_c(root: Path, names: list[str], classes: dict[str, int]) -> Path:
    """One image of each class at each severity; its gray level is that of the class plus the severity."""
    for name in names:
        for severity in range(1, 6):
            write_greys(root / name / str(severity), {label: [grey + severity] for label, grey in classes.items()})
    return root


def test_mce_of_known_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Class 0 is always right, class 999 up to severity 3, so the mean error is 20 %, and the same in every corruption."""
    monkeypatch.setenv("COLUMNS", "160")
    root = write_c(tmp_path, ["frost", "fog"], {SYNSETS[0]: 10, SYNSETS[999]: 100})
    model = classifier(1000, lambda grey: [0] if grey < 50 or grey > 103 else [999])
    rows = measure(Robustness("stub", imagenet_c=root), model, ALONE)
    assert [row.data for row in rows[::5]] == ["ImageNet-C/frost", "ImageNet-C/fog"]
    assert [(row.severity, row.top1) for row in rows[:5]] == [(1, 100), (2, 100), (3, 100), (4, 50), (5, 50)]
    everywhere = [replace(row, data=f"ImageNet-C/{name}") for name in ALEXNET_ERRORS for row in rows[:5]]
    _print_all(everywhere, model, (1, 2, 3, 4, 5))
    printed = capsys.readouterr().out
    expected = np.mean([20 / error for error in ALEXNET_ERRORS.values()])
    assert f"mCE {expected:.1f} %, relative to AlexNet's errors" in printed
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    assert cells[8] == ["frost", "100.00", "100.00", "100.00", "50.00", "50.00", "80.00", f"{20 / 0.826572:.1f}"]
    assert cells[-1] == ["mean", "100.00", "100.00", "100.00", "50.00", "50.00", "80.00", f"{expected:.1f}"]
    assert "only 2 of the 1000 classes have images here" in printed


def test_archives_are_found_and_mce_needs_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_c(tmp_path / "noise", ["shot_noise"], {SYNSETS[0]: 10})
    write_c(tmp_path / "extra", ["spatter"], {SYNSETS[0]: 10})
    assert {(folder.corruption, folder.severity) for folder in find_corruptions(tmp_path)} == {
        ("shot_noise", level) for level in range(1, 6)
    }
    model = classifier(1000, lambda _grey: [0])
    _print_all(measure(Robustness("stub", imagenet_c=tmp_path), model, ALONE), model, ())
    printed = capsys.readouterr().out.replace("\n", " ")
    assert "mCE needs all 15 corruptions; missing: gaussian_noise, impulse_noise," in printed
    assert "mCE 0" not in printed


def test_images_of_224_px_are_not_cropped(tmp_path: Path) -> None:
    """A frame that the usual crop of the center would remove decides the answer."""
    for severity in range(1, 6):
        folder = tmp_path / "fog" / str(severity) / SYNSETS[7]
        folder.mkdir(parents=True)
        pixels = np.zeros((32, 32, 3), np.uint8)
        pixels[1:-1, 1:-1] = 64
        Image.fromarray(pixels).save(folder / "a.png")
    stub = classifier(1000, lambda grey: [7] if grey == round(64 * 30**2 / 32**2) else [0])
    cropping = replace(stub.settings, data=DataConfig(size_px=32, crop_pct=0.875, workers=0))
    model = replace(stub, settings=cropping)
    assert {row.top1 for row in measure(Robustness("stub", imagenet_c=tmp_path), model, ALONE)} == {100}
    (row,) = measure(Robustness("stub", sketch=tmp_path / "fog" / "1"), model, ALONE)
    assert row.top1 == 0


def test_wrong_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no folder of a corruption, such as"):
        find_corruptions(tmp_path)
    write_c(tmp_path, ["fog"], {SYNSETS[0]: 10})
    (tmp_path / "gausian_noise").mkdir()
    with pytest.raises(ValueError, match=r"has a folder gausian_noise, which is no corruption; did you mean gaussian_noise\?"):
        find_corruptions(tmp_path)
    (tmp_path / "gausian_noise").rmdir()
    shutil.rmtree(tmp_path / "fog" / "4")
    with pytest.raises(ValueError, match="fog has no folder 4; a corruption has the severities 1 to 5"):
        find_corruptions(tmp_path)
    write_greys(tmp_path / "fog" / "4", {"cat": [10]})
    with pytest.raises(ValueError, match="class 'cat' is not one of ImageNet-C's 1000"):
        measure(Robustness("stub", imagenet_c=tmp_path), classifier(1000, lambda _grey: [0]), ALONE)


def test_imagenet_r_compares_its_200_outputs(tmp_path: Path) -> None:
    """goldfish, great white shark and hammerhead are 1, 2 and 4; tench, 0, is not among the 200."""
    root = write_greys(tmp_path, {SYNSETS[1]: [10, 20], SYNSETS[2]: [30], SYNSETS[4]: [40]})
    model = classifier(1000, lambda grey: [0, {10: 1, 20: 4, 30: 2, 40: 4}[grey]])
    (row,) = measure(Robustness("stub", imagenet_r=root), model, ALONE)
    assert (row.data, row.count, row.classes, row.top1) == ("ImageNet-R", 4, 3, 75)
    write_greys(tmp_path, {SYNSETS[0]: [50]})
    with pytest.raises(ValueError, match="class 'n01440764' is not one of ImageNet-R's 200"):
        measure(Robustness("stub", imagenet_r=tmp_path), model, ALONE)


def test_imagenet_v2_has_numbers_as_folders(tmp_path: Path) -> None:
    """Sorted as text, 10 comes before 2."""
    root = write_greys(tmp_path, {"2": [10, 20], "10": [30], "999": [40]})
    model = classifier(1000, lambda grey: [{10: 2, 20: 2, 30: 10, 40: 998}[grey]])
    (row,) = measure(Robustness("stub", imagenet_v2=root), model, ALONE)
    assert (row.data, row.count, row.top1) == ("ImageNet-V2", 4, 75)


def test_command_with_a_model_of_other_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of two classes on corrupted images of these: top-1 without CE, which compares with AlexNet on ImageNet."""
    make_folder(tmp_path / "data", count=4)
    data = dict(source="folder", root=str(tmp_path / "data"), size_px=32, crop_pct=1.0)
    model = dict(in_chans=3)
    optim = dict(epochs=1, batch_size=4)
    recipe = write_recipe(tmp_path / "r.yaml", data=data, model=model, optim=optim)
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(tmp_path / "run")]) == 0
    for name in ("frost", "fog"):
        for severity in "12345":
            shutil.copytree(tmp_path / "data" / "val", tmp_path / "c" / name / severity)
    capsys.readouterr()
    out = tmp_path / "r.csv"
    command = ["robustness", str(tmp_path / "run"), "--imagenet-c", str(tmp_path / "c"), "--data.workers", "0"]
    assert tailprop_cli.main([*command, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "frost" in printed
    assert "CE" not in printed
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [(row["data"], row["severity"]) for row in rows] == [
        (f"ImageNet-C/{n}", s) for n in ("frost", "fog") for s in "12345"
    ]
    assert {row["count"] for row in rows} == {"8"}
    assert len({row["top1"] for row in rows}) == 1  # the images are the same
    (tmp_path / "c" / "fog" / "3" / "blue").rename(tmp_path / "c" / "fog" / "3" / "green")
    assert_refused(command, "the dataset has classes that the model does not have: green", capsys)
    assert_refused([*command[:2], "--imagenet-c", "nowhere"], "no folder nowhere; --imagenet-c takes the folder", capsys)
