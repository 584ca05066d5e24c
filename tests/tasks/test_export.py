"""`tailprop export` of every task, and `tailprop predict` of the files in a process where PyTorch cannot be imported."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import nn

import tailprop
import tailprop_cli
from tailprop.backbone.model import MIN_SIZE_PX
from tailprop.engine import export
from tailprop.engine.exported import Description, InputSpec, read_description
from tailprop.tasks.common.config import LEAST_PX
from tests.helpers.runs import assert_refused
from tests.helpers.tiny_tasks import write_tiny

EXPORTED = ("classify", "detect", "segment", "restore")
WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "timm"):
            raise ImportError(f"{name} must not be imported")

sys.meta_path.insert(0, Refuse())
import tailprop_cli
sys.exit(tailprop_cli.main(sys.argv[1:]))
"""
OTHER_SIZES = ((80, 67), (33, 140), (41, 41))  # besides those that the export itself checks


@pytest.fixture(scope="module", params=EXPORTED)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run with its ONNX file."""
    home = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert tailprop_cli.main(["train", str(write_tiny(request.param)), "--run.out", "run"]) == 0
        assert tailprop_cli.main(["export", "run"]) == 0
        yield home / "run"


def network_of(run: Path) -> Any:
    found = tailprop.load(run)
    return found.model.backbone if read_description(run / "model.onnx").task == "detect" else found.model


def test_same_outputs_as_pytorch_at_other_sizes(run: Path) -> None:
    session = onnxruntime.InferenceSession(run / "model.onnx")
    channels, network = session.get_inputs()[0].shape[1], network_of(run)
    for h, w in OTHER_SIZES:
        x = torch.randn(2, channels, h, w)
        with torch.no_grad():
            expected = network(x)
        expected = list(expected.values()) if isinstance(expected, dict) else [expected]
        found = session.run(None, {"images": x.numpy()})
        for ours, theirs in zip(expected, found, strict=True):
            np.testing.assert_allclose(theirs, ours.numpy(), rtol=0, atol=1e-4)


def images_of(run: Path) -> list[Path]:
    return sorted(
        path for path in (run.parent / "data").rglob("*") if path.suffix in (".jpg", ".png") and "annot" not in str(path)
    )


def predict_without_torch(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "predict", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_prediction_without_torch_is_that_of_the_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, images = read_description(run / "model.onnx").task, images_of(run)[-3:]
    if task == "detect":
        done = predict_without_torch(run / "model.onnx", *images, "--out", tmp_path / "out")
        assert done.returncode == 2
        assert "feature maps (pyramid)" in done.stderr
        assert done.stderr.count("\n") == 1
        return
    if task == "classify":
        done = predict_without_torch(run / "model.onnx", *images, "--format", "json")
        assert done.returncode == 0, done.stderr
        capsys.readouterr()
        assert tailprop_cli.main(["predict", str(run), *map(str, images), "--format", "json"]) == 0
        assert_same_classes(json.loads(done.stdout), json.loads(capsys.readouterr().out))
        return
    done = predict_without_torch(run / "model.onnx", *images, "--out", tmp_path / "exported")
    assert done.returncode == 0, done.stderr
    assert tailprop_cli.main(["predict", str(run), *map(str, images), "--out", str(tmp_path / "run")]) == 0
    names = sorted(path.relative_to(tmp_path / "run") for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert names == sorted(
        path.relative_to(tmp_path / "exported") for path in (tmp_path / "exported").rglob("*") if path.is_file()
    )
    for name in names:
        assert_same_file(tmp_path / "run" / name, tmp_path / "exported" / name)


def files_of(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def assert_same_classes(found: Any, expected: Any) -> None:
    assert len(found) == len(expected) == 3
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["image"] == theirs["image"]
        for a, b in zip(ours["predictions"], theirs["predictions"], strict=True):
            assert (a["index"], a["name"]) == (b["index"], b["name"])
            assert a["probability"] == pytest.approx(b["probability"], abs=1e-5)


def assert_same_file(ours: Path, theirs: Path) -> None:
    if ours.suffix == ".png":
        a, b = (np.asarray(Image.open(path)).astype(int) for path in (ours, theirs))
        assert a.shape == b.shape
        assert (a != b).mean() < 0.01  # ties, and values that round to either side
    elif ours.suffix == ".txt":
        assert ours.read_text() == theirs.read_text()


def test_tiles_of_an_exported_restorer(run: Path, tmp_path: Path) -> None:
    if read_description(run / "model.onnx").task != "restore":
        return
    images, tiles = images_of(run)[-1:], ["--whole-px", "0", "--tile-px", "24", "--overlap-px", "8"]
    done = predict_without_torch(run / "model.onnx", *images, *tiles, "--out", tmp_path / "exported")
    assert done.returncode == 0, done.stderr
    assert tailprop_cli.main(["predict", str(run), str(images[0]), *tiles, "--out", str(tmp_path / "run")]) == 0
    for path in (tmp_path / "run").iterdir():
        assert_same_file(path, tmp_path / "exported" / path.name)


def test_what_an_exported_file_cannot_do_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, image = str(run / "model.onnx"), str(images_of(run)[0])
    assert_refused(["eval", file], "takes no exported files", capsys)
    assert_refused(["export", str(run)], "exists; replace it (--overwrite)", capsys)
    out = [] if read_description(run / "model.onnx").task == "classify" else ["--out", str(tmp_path / "out")]
    assert_refused(["predict", file, image, "--precision", "bf16", *out], "--precision is not supported", capsys)
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes((run / "model.onnx").read_bytes()[:-100])
    assert_refused(["predict", str(damaged), image, *out], "damaged.onnx", capsys)


def test_least_side_is_that_of_the_backbone() -> None:
    assert LEAST_PX == MIN_SIZE_PX


class Fixed(nn.Module):
    """A number kept from the size of the example: the graph is wrong at other sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3)) * (0.72 if torch.compiler.is_exporting() else x.shape[2] / 100)


class Branch(nn.Module):
    """A graph for one size alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3)) if x.shape[2] % 7 == 2 else x.amax((2, 3))


@pytest.mark.parametrize(("network", "words"), [(Fixed(), "differs by"), (Branch(), "cannot be exported|differs by")])
def test_wrong_graphs_are_never_written(network: nn.Module, words: str, tmp_path: Path) -> None:
    about = Description("classify", "a network", InputSpec(3, (0.0,) * 3, (1.0,) * 3))
    item = export.Exportable(network.eval(), about, ((72, 88), (65, 67), (64, 64)))
    with pytest.raises(ValueError, match=words) as caught:
        export.export_onnx(item, tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
