"""How the shipped models are made and measured: folders of photographs, half precision, the table."""

import csv
import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter

import tailprop_cli
from tailprop.engine.checkpoint import read_state_dict, save_tensors
from tailprop.engine.integrity import check_intact
from tailprop.engine.run_settings import find_weights, read_metadata
from tailprop.studies.shipped import pack as packing
from tailprop.studies.shipped import table
from tailprop.studies.shipped.options import ShippedTable
from tailprop.studies.shipped.pack import pack
from tailprop.studies.shipped.photographs import SPLIT, held_out_photographs, scikit_image_photographs, write_folders
from tailprop.studies.shipped.published import PUBLISHED, noise_psnr
from tailprop.studies.shipped.table import Case


@pytest.fixture
def crop(tmp_path: Path) -> Path:
    """A folder with a small photograph in gray and one in colour."""
    from skimage.data import camera, coffee

    Image.fromarray(camera()[200:264, 200:272]).save(tmp_path / "gray.png")
    Image.fromarray(coffee()[100:164, 200:264]).save(tmp_path / "colour.png")
    return tmp_path


def test_no_photograph_is_both_trained_on_and_held_out() -> None:
    assert not set(SPLIT["held_out"]) & set(SPLIT["validation"])
    assert not set(SPLIT["scikit_image"]) & set(SPLIT["scikit_image_held_out"])
    assert len(SPLIT["held_out"]) == 20
    assert set(SPLIT["gray_validation"]) < set(SPLIT["validation"])
    assert all(path.is_file() for held_out in (True, False) for path in scikit_image_photographs(held_out))


def test_photographs_are_sorted_into_folders(tmp_path: Path) -> None:
    bsd, train400 = tmp_path / "bsd", tmp_path / "train400"
    image = Image.fromarray(np.zeros((8, 8, 3), np.uint8))
    for folder, names in (
        (bsd, [*SPLIT["held_out"], *SPLIT["validation"], "1001", "1002"]),
        (train400, [f"test_{number:03}" for number in range(1, 401)]),
    ):
        folder.mkdir()
        for name in names:
            image.save(folder / f"{name}.png")
    counts = write_folders(bsd, train400, tmp_path / "out")
    assert counts == {"train": 10, "train_gray": 194, "held_out": 20, "validation": 10}
    for name, count in counts.items():
        assert len(list((tmp_path / "out" / name).iterdir())) == count
    modes = set()
    for path in (tmp_path / "out" / "validation").iterdir():
        with Image.open(path) as saved:
            modes.add(saved.mode)
    assert modes == {"L", "RGB"}
    (bsd / f"{SPLIT['held_out'][0]}.png").unlink()
    with pytest.raises(ValueError, match=f"has no {SPLIT['held_out'][0]} and lacks 1 of 20"):
        held_out_photographs(bsd)


def test_weights_are_packed_in_half_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = find_weights("denoise")
    single = {name: value.float() + 1e-5 for name, value in read_state_dict(weights).items()}
    save_tensors(tmp_path / "model.safetensors", single, read_metadata(weights))
    packed = find_weights(pack(tmp_path / "model.safetensors", "mine", "restores", "30 dB", tmp_path))
    check_intact(packed)
    assert packed.stat().st_size < 0.51 * (tmp_path / "model.safetensors").stat().st_size + 10_000
    for name, value in read_state_dict(packed).items():
        assert torch.equal(value, single[name].half())
    assert read_metadata(packed)["settings"] == read_metadata(weights)["settings"]
    monkeypatch.setattr(packing, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="a shipped model has at most"):
        pack(tmp_path / "model.safetensors", "mine", "restores", "30 dB", tmp_path)


def test_table_measures_and_keeps_finished_rows(crop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out" / "shipped.csv"
    options = ShippedTable(set12=crop, scikit_image=False, sigmas=(25,), qualities=(10,), out=out)
    table.run(options)
    with out.open(newline="") as file:
        (row,) = [row for row in csv.DictReader(file) if row["degradation"] == "noise"]
    assert row["method"] == "denoise"
    assert float(row["psnr"]) > float(row["input_psnr"]) + 4
    assert float(row["input_psnr"]) == pytest.approx(noise_psnr(25), abs=0.2)
    assert float(row["seconds_per_megapixel"]) > 0
    assert (row["images"], row["threads"]) == ("2", "1")
    assert out.with_suffix(".png").stat().st_size > 1000
    monkeypatch.setattr(table, "measure", lambda *_: pytest.fail("a finished row was measured again"))
    table.run(options)
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        table.run(dataclasses.replace(options, sigmas=(15,)))


def test_bm3d_is_told_the_noise(crop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def smooth(values: np.ndarray, sigma: float) -> np.ndarray:  # in place of the package, whose licence is not for every use
        told.append((values.shape, sigma))
        return gaussian_filter(values, sigma=(1, 1, 0)[: values.ndim])

    monkeypatch.setitem(sys.modules, "bm3d", SimpleNamespace(bm3d=smooth, bm3d_rgb=smooth))
    monkeypatch.setattr("importlib.metadata.version", lambda _: "4.0")
    case = Case("two", [crop / "gray.png", crop / "colour.png"], "noise", 25)
    found = table._restorer("bm3d", case)
    assert found is not None
    name, version, restore = found
    assert (name, version) == ("BM3D", "4.0")
    row = table.measure(case, restore)
    assert float(row["psnr"]) > float(row["input_psnr"]) + 2
    assert {shape for shape, _ in told} == {(64, 72), (64, 64, 3)}
    assert {sigma for _, sigma in told} == {25 / 255}
    assert table._restorer("bm3d", Case("two", [], "jpeg", 40)) is None


def test_bm3d_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm3d", None)
    with pytest.raises(ValueError, match="pip install bm3d"):
        table._restorer("bm3d", Case("two", [], "noise", 25))


def test_published_rows_gain_on_their_input() -> None:
    assert all(row.psnr > row.input_psnr for row in PUBLISHED)
    assert noise_psnr(25) == pytest.approx(20.17, abs=0.01)


def test_wrong_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for args, message in (
        (["--set12", str(tmp_path / "none")], "is not a folder"),
        (["--sigmas", "0"], "sigmas must be at least 1"),
        (["--no-scikit-image"], "nothing to measure"),
    ):
        assert tailprop_cli.main(["shipped", "--out", str(tmp_path / "x.csv"), *args]) == 2
        assert message in capsys.readouterr().err
