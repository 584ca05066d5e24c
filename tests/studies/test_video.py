"""The example of a video network: its clips, its shapes and that it learns."""

import pytest
import torch

from tailprop import TailPropagation
from tailprop.studies.video import DIRECTIONS, Video, VideoPico, accuracy, moving_shapes
from tailprop_cli import main


def test_clips_move_in_their_direction() -> None:
    clips, labels = moving_shapes(64, 6, 32, seed=0)
    assert clips.shape == (64, 6, 32, 32, 1)
    assert torch.equal(moving_shapes(64, 6, 32, seed=0)[0], clips)
    bright = (clips[..., 0] - 0.5).clamp_min(0)
    position = torch.arange(32.0)
    x = (bright.sum(2) * position).sum(-1) / bright.sum((2, 3))  # (B, T), the centre of what is bright
    right = (x[:, -1] - x[:, 0])[labels == 0]
    left = (x[:, -1] - x[:, 0])[labels == DIRECTIONS // 2]
    assert right.mean() > 0.3 > -0.3 > left.mean()


def test_the_network_has_the_operator_over_three_axes() -> None:
    model = VideoPico()
    sizes = []
    for module in model.modules():
        if isinstance(module, TailPropagation):
            module.register_forward_pre_hook(lambda _, inputs: sizes.append(tuple(inputs[0].shape[1:])))
    model(torch.zeros(2, 4, 32, 24, 1)).sum().backward()
    assert sizes == [(4, 8, 6, 32)] * 2 + [(4, 4, 3, 64)] * 2
    assert all(p.grad is not None for p in model.parameters())


def test_command_trains(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--frames", "4", "--size-px", "16", "--batch-size", "4", "--test-clips", "8"]
    assert main(["video", "--steps", "2", *sizes]) == 0
    assert "% correct" in capsys.readouterr().out
    assert main(["video", "--steps", "0"]) == 2


def test_accuracy_is_chance_without_training() -> None:
    torch.manual_seed(0)
    assert accuracy(VideoPico(), Video(frames=3, size_px=16, test_clips=64)) < 40
