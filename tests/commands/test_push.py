"""Runs on timm's and the Hugging Face Hub's side: config.json, model cards, uploads, initial weights. Without a network."""

import json
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
import yaml
from safetensors.torch import save_file
from timm.models._hub import save_for_hf

import tailprop
import tailprop_cli
from tailprop.engine.checkpoint import save_weights
from tailprop.engine.config import ModelConfig
from tailprop.engine.run_folder import RunFolder
from tailprop.engine.settings import build
from tailprop.runtime.distributed import World
from tailprop.tasks import find_spec
from tailprop.tasks.classify.augment import eval_transform
from tailprop.tasks.classify.model import create_model
from tailprop.tasks.common.hub import backbone_config, download
from tailprop.tasks.common.predictor import to_pil
from tests.helpers.runs import assert_refused
from tests.helpers.tiny_tasks import write_tiny

PIXELS = torch.linspace(-2, 2, 2 * 3 * 40 * 48).view(2, 3, 40, 48)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A classifier with a mixer and preprocessing of its own."""
    home = tmp_path_factory.mktemp("hub")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        recipe = write_tiny("classify")
        settings = yaml.safe_load(recipe.read_text())
        settings["model"]["args"]["mixer"] = "gaussian"
        settings["data"] |= {"size_px": 40, "crop_pct": 40 / 46}
        settings["optim"]["epochs"] = 1
        recipe.write_text(yaml.safe_dump(settings))
        patch.setattr("sys.argv", ["tailprop", "train", recipe.name, "--run.out", "run"])  # of the manifest
        assert tailprop_cli.main(["train", str(recipe), "--run.out", "run"]) == 0
        yield home / "run"


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(PIXELS)


def assert_same(model: torch.nn.Module, run: Path) -> None:
    torch.testing.assert_close(logits(model), logits(tailprop.load(run).model), rtol=0, atol=1e-6)


def test_timm_creates_the_network_from_the_run_folder(run: Path) -> None:
    model = timm.create_model(f"local-dir:{run}", pretrained=True)
    assert_same(model, run)
    assert model.pretrained_cfg["label_names"] == ["blue", "red"]


def test_preprocessing_is_that_of_the_run(run: Path) -> None:
    found = timm.data.resolve_model_data_config(timm.create_model(f"local-dir:{run}"))
    assert found["input_size"] == [3, 40, 40]
    image = to_pil(torch.rand(3, 57, 91), "RGB")
    settings = tailprop.load(run).settings
    ours, theirs = eval_transform(settings.data, settings.augment), timm.data.create_transform(**found)
    assert settings.data.eval_resize_px == 46
    torch.testing.assert_close(ours(image), theirs(image), rtol=0, atol=0)


def test_a_folder_saved_again_by_timm_loads(run: Path, tmp_path: Path) -> None:
    save_for_hf(timm.create_model(f"local-dir:{run}", pretrained=True), str(tmp_path), safe_serialization=True)
    assert_same(timm.create_model(f"local-dir:{tmp_path}", pretrained=True), run)


def test_transformers_loads_the_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForImageClassification

    model = AutoModelForImageClassification.from_pretrained(run).eval()
    with torch.no_grad():
        found = model(PIXELS).logits
    torch.testing.assert_close(found, logits(tailprop.load(run).model), rtol=0, atol=1e-6)
    assert model.config.id2label == {0: "blue", 1: "red"}


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_text("{}"), lambda path: path.write_text("")]
)
def test_config_is_written_again_when_a_run_resumes(run: Path, tmp_path: Path, damage: Any) -> None:
    """Also for runs of earlier versions, which have none."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    damage(copy / "config.json")
    assert not RunFolder(copy).has_hub_config()
    assert tailprop_cli.main(["train", str(copy), "--run.resume"]) == 0
    assert RunFolder(copy).has_hub_config()
    assert (copy / "config.json").read_text() == (run / "config.json").read_text()


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_timm_takes_the_backbone_of_a_larger_network(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = yaml.safe_load(write_tiny(task).read_text())
    spec = find_spec(task)
    config = build(spec.config_type(), settings)
    network = spec.create(config, World(0, 1, torch.device("cpu"))).build_model().eval()
    save_weights(tmp_path / "model.safetensors", network, {})
    RunFolder(tmp_path).write_hub_config(backbone_config(config.model) or {})
    features = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, features_only=True).eval()
    body = network.backbone.body if task == "detect" else network.backbone
    with torch.no_grad():
        for ours, theirs in zip(body(PIXELS), features(PIXELS), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


class FakeApi:
    """The calls of huggingface_hub's HfApi that an upload makes."""

    calls: list[tuple[str, dict[str, Any]]]
    files: dict[str, bytes]

    def create_repo(self, repo_id: str, **how: Any) -> None:
        FakeApi.calls = [("create_repo", {"repo_id": repo_id, **how})]

    def upload_folder(self, **how: Any) -> Any:
        FakeApi.files = {path.name: path.read_bytes() for path in Path(how["folder_path"]).iterdir()}
        FakeApi.calls.append(("upload_folder", how))
        return SimpleNamespace(oid="0123456789abcdef")


def test_upload(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    assert tailprop_cli.main(["push", str(run), "ada/tiny", "--private", "--license", "cc-by-4.0"]) == 0
    (create, first), (upload, second) = FakeApi.calls
    assert (create, upload) == ("create_repo", "upload_folder")
    assert first == {"repo_id": "ada/tiny", "private": True, "exist_ok": True}
    assert second["repo_id"] == "ada/tiny"
    assert "https://huggingface.co/ada/tiny: uploaded" in capsys.readouterr().out
    assert set(FakeApi.files) == {"README.md", "config.json", "model.safetensors"}  # no pickles, no paths of this machine
    assert FakeApi.files["model.safetensors"] == (run / "model.safetensors").read_bytes()
    assert tailprop_cli.main(["push", str(run), "ada/tiny", "--dry-run", str(tmp_path / "out"), "--license", "cc-by-4.0"]) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == FakeApi.files
    assert_same(timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True), run)


def test_model_card(run: Path, tmp_path: Path) -> None:
    assert tailprop_cli.main(["push", str(run), "ada/tiny", "--dry-run", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    assert yaml.safe_load(head)["pipeline_tag"] == "image-classification"
    manifest = RunFolder(run).read_manifest()
    for expected in ("top-1, %", "8 images", manifest["split_hash"]["train"], "`blue`, `red`", "command: `tailprop train "):
        assert expected in body
    assert str(run.parent) not in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nothing", "ada/tiny"], "no checkpoint at nothing"),
        (["RUN", "tiny"], "is not the name of a repository"),
        (["RUN", "ada/tiny", "--license", "My Own"], "is not an identifier"),
        (["RUN", "ada/tiny", "--dry-run", "RUN"], "is not empty"),
    ],
)
def test_wrong_arguments_of_push(run: Path, args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["push", *(str(run) if arg == "RUN" else arg for arg in args)], words, capsys)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network: names are not resolved, and the cache is empty."""

    def refuse(*_args: Any, **_how: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("init", ["timm:resnet18.a1_in1k", "hf-hub:ada/tiny"])
def test_without_a_network_one_line_says_so_at_once(init: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    args = ["train", str(run), "--run.out", str(run.parent / "other"), "--model.init", init]
    assert_refused(args, "cannot reach the Hugging Face Hub", capsys)
    assert time.monotonic() - began < 10


def fake_hub(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A Hub whose repositories are this folder."""
    files = [SimpleNamespace(rfilename=path.name) for path in folder.iterdir()]
    api = SimpleNamespace(model_info=lambda *_args, **_how: SimpleNamespace(siblings=files))
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda _repo, name, **_how: str(folder / name))


def test_initial_weights_from_the_hub(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tailprop_cli.main(["push", str(run), "ada/tiny", "--dry-run", str(tmp_path / "repo")]) == 0
    fake_hub(monkeypatch, tmp_path / "repo")
    args = tailprop.load(run).settings.model.args
    model = create_model(ModelConfig(name="tailprop_pico", init="hf-hub:ada/tiny@main", args=args), 2)
    assert_same(model, run)


def test_initial_weights_of_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = timm.create_model("resnet10t")
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    fake_hub(monkeypatch, tmp_path)
    model = create_model(ModelConfig(name="resnet10t", init="timm:resnet10t.c3_in1k"), 5)
    torch.testing.assert_close(model.layer1[0].conv1.weight, theirs.layer1[0].conv1.weight)


def test_pickles_of_the_hub_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet10t"}))
    fake_hub(monkeypatch, tmp_path)
    with pytest.raises(ValueError, match=r"has no model\.safetensors; it has pytorch_model\.bin: pickles are not loaded"):
        download("ada/tiny")
