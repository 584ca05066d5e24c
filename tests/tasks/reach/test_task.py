"""Training on the problems: every mixer fits, training data differs from test data, and errors say what to do."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from skimage import data as photographs

from tailprop.backbone.mixers import MIXERS
from tailprop.data.samplers import SampleKey
from tailprop.tasks.reach.config import ReachConfig, ReachDataConfig
from tailprop.tasks.reach.data import ReachDataset, collate_posed
from tailprop.tasks.reach.model import ReachNet
from tailprop.tasks.reach.problems import PROBLEMS
from tailprop.tasks.reach.task import build_reach
from tests.helpers.runs import assert_refused


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_runs_at_any_size(mixer: str) -> None:
    net = ReachNet(4, 3, dim=16, depth=2, mixer=mixer, patch_px=2, map_px=8, mixer_args=_args(mixer))
    assert net(torch.rand(2, 4, 16, 16)).shape == (2, 3, 16, 16)
    assert net(torch.rand(1, 4, 13, 21)).shape == (1, 3, 13, 21)


def _args(mixer: str) -> dict[str, int]:
    return {"head_dim": 8} if mixer == "attention" else {}


def test_only_a_mixer_reaches_far() -> None:
    """Without one, a pixel depends on the neighbourhood of the convolutions alone."""
    far = {}
    for mixer in ("identity", "multiscale"):
        torch.manual_seed(0)
        net = ReachNet(1, 1, dim=16, depth=2, mixer=mixer, map_px=32)
        x = torch.rand(1, 1, 32, 32, requires_grad=True)
        net(x)[0, 0, 0, 0].backward()
        assert x.grad is not None
        far[mixer] = float(x.grad[0, 0, 8:, 8:].abs().max())
    assert far["identity"] == 0
    assert far["multiscale"] > 0


def photo_folder(folder: Path) -> Path:
    folder.mkdir()
    Image.fromarray(photographs.astronaut()).resize((96, 96)).save(folder / "astronaut.png")
    Image.fromarray(photographs.coffee()).resize((96, 64)).save(folder / "coffee.png")
    return folder


@pytest.mark.parametrize("name", PROBLEMS)
def test_test_examples_do_not_depend_on_the_seed_of_training(name: str, tmp_path: Path) -> None:
    photos = photo_folder(tmp_path / "photos")
    data = ReachDataConfig(problem=name, size_px=48, train=photos, test=photos, workers=0)
    test, train = ReachDataset(data, "test"), ReachDataset(data, "train")
    same = collate_posed([test[SampleKey(1, seed)] for seed in (0, 7)])
    torch.testing.assert_close(same.x[0], same.x[1], rtol=0, atol=0)
    other = collate_posed([train[SampleKey(1, seed)] for seed in (0, 7)])
    assert not torch.equal(other.x[0], other.x[1])
    assert other.target.shape[0] == 2
    assert other.target.ndim == {"labels": 3, "values": 4}[train.problem.kind]


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    grads = []
    for enable in (False, True):
        torch.manual_seed(0)
        net = ReachNet(1, 2, dim=16, depth=2, map_px=16)
        net.set_grad_checkpointing(enable)
        net(torch.ones(2, 1, 16, 16)).square().sum().backward()
        grads.append([p.grad for p in net.parameters()])
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["train", "reach_color", "--data.train", "None"],
            "the problem color needs photographs; set their folder with --data.train",
        ),
        (["train", "reach_seeds", "--model.args", "mixer=magic"], "mixer"),
        (["train", "reach_seeds", "--model.name", "tailprop_tiny"], "model.name must be reach_net"),
        (["train", "reach_key", "--data.size-px", "24"], "data.size_px must be at least 40 for the problem key"),
        (["train", "reach_keys", "--data.size-px", "48"], "data.size_px must be at least 64 for the problem keys"),
        (["train", "reach_fill", "--data.share", "2"], "data.share"),
    ],
)
def test_user_errors_are_one_line(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(args, message, capsys)


def test_channels_other_than_the_problems_are_refused() -> None:
    config = ReachConfig()
    with pytest.raises(ValueError, match=r"model\.in_chans must be 3 for the problem seeds, got 4"):
        replace(config, model=replace(config.model, in_chans=4)).check()


@pytest.mark.parametrize("patch_px", ["x", 0, None, [1], -1])
def test_patches_of_a_wrong_type_are_refused(patch_px: object) -> None:
    """The settings in a file of weights may be anything."""
    config = ReachConfig()
    network = replace(config.model, args={"patch_px": patch_px})
    with pytest.raises(ValueError, match=r"cannot create reach_net|patch_px"):
        build_reach(config, network)
