"""Loading vHeat's published weights, and warm starts."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from tailprop import TailProp, warm_start
from tailprop.backbone.weights import checkpoint_filter_fn
from tailprop.engine.checkpoint import read_state_dict
from tailprop.engine.config import ModelConfig
from tailprop.tasks.classify.model import create_model
from tests.helpers import FIXTURES

# Names and shapes of a small vHeat's state dict, and the logits of its published code for weights drawn as in the file.
PUBLISHED = json.loads((FIXTURES / "vheat_published.json").read_text())


def published(case: str) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """State dict, images and logits of one case."""
    rng = np.random.RandomState(0)  # the generator that made the file

    def draw(shape: Any) -> Tensor:
        return torch.from_numpy(rng.standard_normal(tuple(shape))).float()

    shapes = PUBLISHED["cases"][case]["shapes"]
    state = {name: torch.from_numpy(rng.standard_normal(tuple(shapes[name])) * 0.2).float() for name in sorted(shapes)}
    return state, draw((2, 3, 64, 64)), torch.tensor(PUBLISHED["cases"][case]["logits"])


def small(case: str, **kwargs: Any) -> TailProp:
    norm: dict[str, Any] = dict(post_norm=True, layer_scale=1e-5) if case == "post" else {}
    return TailProp(depths=(1, 2, 1, 1), dims=(16, 32, 64, 128), img_size=64, **(dict(num_classes=5) | norm | kwargs)).eval()


def save_as_vheat_does(state: dict[str, Tensor], path: Path) -> None:
    """vHeat's checkpoints contain a pickled yacs configuration; reading them must not need yacs."""
    yacs = ModuleType("yacs.config")
    node = type("CfgNode", (dict,), {"__module__": "yacs.config"})
    setattr(yacs, node.__name__, node)
    sys.modules |= {"yacs": ModuleType("yacs"), "yacs.config": yacs}
    config = node(MODEL=node(NAME="vHeat_tiny"))
    config.__dict__["__immutable__"] = True
    torch.save({"model": state, "epoch": 299, "config": config}, path)
    del sys.modules["yacs"], sys.modules["yacs.config"]


@pytest.mark.parametrize("case", ["pre", "post"])
def test_published_weights_give_published_logits(case: str) -> None:
    state, images, logits = published(case)
    model = small(case, mixer="heat")
    model.load_state_dict(checkpoint_filter_fn(state, model))  # strict: every tensor is used
    torch.testing.assert_close(model(images), logits, rtol=1e-4, atol=1e-5)


def test_through_timm(tmp_path: Path) -> None:
    """`pretrained=True` with a file in vHeat's format, another class count included."""
    state, images, logits = published("pre")
    save_as_vheat_does(state, tmp_path / "vheat.pth")
    settings = dict(depths=(1, 2, 1, 1), dims=(16, 32, 64, 128), img_size=64)
    cfg = dict(file=str(tmp_path / "vheat.pth"), num_classes=5)
    model = timm.create_model("vheat_tiny", pretrained=True, pretrained_cfg_overlay=cfg, num_classes=5, **settings).eval()
    torch.testing.assert_close(model(images), logits, rtol=1e-4, atol=1e-5)
    other = timm.create_model("vheat_tiny", pretrained=True, pretrained_cfg_overlay=cfg, num_classes=7, **settings)
    assert other(images).shape == (2, 7)


def test_embeddings_follow_the_image_size() -> None:
    state, _, _ = published("pre")
    model = TailProp(depths=(1, 2, 1, 1), dims=(16, 32, 64, 128), num_classes=5, img_size=(96, 128), mixer="heat")
    model.load_state_dict(checkpoint_filter_fn(state, model))
    assert model.stages[0].freq_embed.shape == (24, 32, 16)


def test_warm_start_of_tailprop_from_vheat_is_reported() -> None:
    state, images, _ = published("pre")
    model = small("pre", num_classes=3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = warm_start(model, state)
    after = model.state_dict()

    torch.testing.assert_close(after["stem.conv1.weight"], state["patch_embed.conv1.weight"])
    torch.testing.assert_close(after["stages.1.layers.1.mlp.fc1.weight"], state["layers.1.1.mlp.fc1.weight"].flatten(1))
    torch.testing.assert_close(after["stages.2.downsample.conv.weight"], state["layers.1.2.0.weight"])
    assert all("mixer" in name or name.startswith("head.") for name in report.fresh)
    assert all(torch.equal(after[name], before[name]) for name in report.fresh)
    assert set(report.misfits) == {"head.fc.weight", "head.fc.bias"}
    assert all("to_k" in name or "freq_embed" in name for name in report.unused)
    assert set(report.taken) | set(report.fresh) == set(after)
    assert f"{len(report.taken)} of {len(after)} tensors loaded" in str(report)
    assert "different shape (2): head.fc.bias" in str(report)
    assert torch.isfinite(model(images)).all()


def test_own_weights_are_unchanged_by_the_filter() -> None:
    model = small("pre")
    report = warm_start(model, small("pre").state_dict())
    assert (report.misfits, report.unused, report.fresh) == ((), (), ())


def test_weights_of_another_model_raise_unless_they_fill_half(tmp_path: Path) -> None:
    pico = timm.create_model("tailprop_pico", num_classes=5)
    save_file(pico.state_dict(), tmp_path / "pico.safetensors", {"architecture": "tailprop_pico"})
    with pytest.raises(ValueError, match=r"is a tailprop_pico and fills nothing of tailprop_nano; use --model.name"):
        create_model(ModelConfig("tailprop_nano", init=str(tmp_path / "pico.safetensors")), 5)
    heat = timm.create_model("tailprop_pico", num_classes=5, mixer="heat")
    save_file(heat.state_dict(), tmp_path / "heat.safetensors", {"architecture": "vheat_pico"})
    create_model(ModelConfig("tailprop_pico", init=str(tmp_path / "heat.safetensors")), 5)
    torch.save(pico.state_dict(), tmp_path / "unnamed.pt")
    create_model(ModelConfig("tailprop_nano", init=str(tmp_path / "unnamed.pt")), 5)  # it reports what it loaded


def test_weights_that_fit_nowhere_raise() -> None:
    with pytest.raises(ValueError, match="no tensor of this checkpoint fits"):
        warm_start(small("pre"), {"conv1.weight": torch.zeros(64, 3, 7, 7)})


def test_files(tmp_path: Path) -> None:
    state, _, _ = published("pre")
    save_as_vheat_does(state, tmp_path / "vheat.pth")
    assert len(warm_start(small("pre"), tmp_path / "vheat.pth").taken) > 50
    save_file(small("pre").state_dict(), tmp_path / "ours.safetensors")
    assert warm_start(small("pre"), str(tmp_path / "ours.safetensors")).fresh == ()


class Malicious:
    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


def test_bad_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Malicious()}, "evil.pth")
    Path("cut.pth").write_bytes(Path("evil.pth").read_bytes()[:100])
    Path("cut.safetensors").write_bytes(b"\x08\x00")
    torch.save([1, 2], "list.pth")
    Path("text.pth").write_text("hello world, not a checkpoint")
    for name, message in {
        "none.pth": "no checkpoint at none.pth",
        "evil.pth": "contains more than weights and was not executed",
        "cut.pth": "cut.pth is corrupt",
        "cut.safetensors": "cut.safetensors is not a safetensors file, or is truncated",
        "list.pth": "list.pth does not contain a state dict",
        "text.pth": "text.pth is corrupt",
    }.items():
        with pytest.raises(ValueError, match=message):
            read_state_dict(name)
    assert not Path("executed").exists()


def test_corrupt_files_raise_in_one_line(tmp_path: Path) -> None:
    """Truncated at any point, or with any bytes at the start, in both formats."""
    weights = {"weight": torch.arange(64.0)}
    torch.save(weights, tmp_path / "new.pth")
    torch.save(weights, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    save_file(weights, tmp_path / "some.safetensors")
    old, new, some = ((tmp_path / name).read_bytes() for name in ("old.pth", "new.pth", "some.safetensors"))
    cut = [whole[:length] for whole in (old, new) for length in range(0, 400, 37)]
    garbage = [b"\x80\x02" + code for code in (b"K", b"X\x01", b"(.", b"Q.", b"R.", b"b.", b"t.", b"\x85R.", b"K\x01K\x02b.")]
    for content in cut + garbage:
        assert_refused(tmp_path / "spoilt.pth", content)
    for content in (some[:-9], some[:20], b"\xff" * 8 + some[8:], some[:8] + b"{" * 20 + some[28:]):
        assert_refused(tmp_path / "spoilt.safetensors", content)


def assert_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{path.name} is (corrupt|not a safetensors file, or is)") as refused:
        read_state_dict(path)
    assert "\n" not in str(refused.value)
