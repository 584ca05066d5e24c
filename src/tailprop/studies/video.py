"""`tailprop video`: the operator over time, height and width, in a classifier of generated moving shapes.

Shapes: B clips, T frames, H height, W width of the map, C channels.

A disc or a square moves in one of eight directions over a noisy background, and the network says which. A single frame does not
tell, so what it learns passes through time. The body is that of `tailprop_pico` with one axis more: stem, layers of a TPO block
and an MLP, a strided convolution between stages. Only convolutions are new; norms, linears and `TailPropagation` do not know
the number of axes.
"""

import math
import time
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from timm.models import named_apply
from torch import Tensor, nn

from tailprop.backbone.layers import MLP
from tailprop.backbone.model import init_module
from tailprop.backbone.operator import TailPropagation
from tailprop.utils.text import say
from tailprop.utils.validation import check_at_least

__all__ = ["Video", "VideoPico", "moving_shapes", "run"]

DIRECTIONS: Final = 8
_TEST_SEED: Final = 1 << 40  # far from those of the training steps


@dataclass(frozen=True)
class Video:
    """Train a small video classifier on generated moving shapes."""

    frames: int = 8
    """Frames of a clip."""
    size_px: int = 32
    """Height and width of a frame."""
    steps: int = 400
    """Steps of training, each on new clips."""
    batch_size: int = 32
    """Clips in a step."""
    test_clips: int = 512
    """Clips that accuracy is measured on."""
    lr: float = 2e-3
    """Highest learning rate of AdamW."""
    seed: int = 0
    """Seed of weights and clips."""

    def check(self) -> None:
        limits = dict(frames=2, size_px=16, steps=1, batch_size=1, test_clips=1, seed=0)
        for name, least in limits.items():
            check_at_least(name, getattr(self, name), least)


class Conv(nn.Conv3d):
    """A convolution of channels-last videos."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(-1, 1)).movedim(1, -1)


class VideoLayer(nn.Module):
    """Residual TPO block, then residual MLP, each after a norm; as in `backbone/model.py`."""

    def __init__(self, dim: int, **settings: Any) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dwconv = Conv(dim, dim, 3, padding=1, groups=dim)
        self.in_proj, self.out_proj = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.mixer, self.norm = TailPropagation(dim, **settings), nn.LayerNorm(dim)
        self.mlp = MLP(dim)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, H, W, C) -> (B, T, H, W, C)
        prop, gate = self.in_proj(self.dwconv(self.norm1(x))).chunk(2, dim=-1)
        x = x + self.out_proj(self.norm(self.mixer(prop)) * F.silu(gate))
        batch, frames = x.shape[:2]
        return x + self.mlp(self.norm2(x).flatten(0, 1)).unflatten(0, (batch, frames))


class VideoPico(nn.Module):
    """A backbone of two stages and a linear classifier; frames are kept, and height and width are halved three times.

    Args:
        num_classes: Classes.
        dims: Channels of the stages.
        depths: Layers of the stages.
        settings: Those of `TailPropagation`.
    """

    def __init__(
        self,
        num_classes: int = DIRECTIONS,
        dims: tuple[int, int] = (32, 64),
        depths: tuple[int, int] = (2, 2),
        **settings: Any,
    ) -> None:
        super().__init__()
        stem = Conv(1, dims[0], (3, 4, 4), stride=(1, 4, 4), padding=(1, 0, 0))
        down = Conv(dims[0], dims[1], (1, 2, 2), stride=(1, 2, 2))
        stages = [[VideoLayer(dim, **settings) for _ in range(depth)] for dim, depth in zip(dims, depths, strict=True)]
        self.body = nn.Sequential(stem, nn.LayerNorm(dims[0]), *stages[0], down, nn.LayerNorm(dims[1]), *stages[1])
        self.norm, self.head = nn.LayerNorm(dims[1]), nn.Linear(dims[1], num_classes)
        named_apply(init_module, self)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, H, W, 1) -> (B, classes)
        return self.head(self.norm(self.body(x)).flatten(1, -2).mean(1))


def moving_shapes(count: int, frames: int, size_px: int, seed: int) -> tuple[Tensor, Tensor]:
    """Clips, (count, T, H, W, 1), of a disc or a square that moves, and the directions they move in, (count,)."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(count, generator=generator) * (high - low) + low

    labels = torch.randint(DIRECTIONS, (count,), generator=generator)
    angle = labels * (2 * math.pi / DIRECTIONS)
    speed, radius = uniform(0.02, 0.05) * size_px, uniform(0.1, 0.2) * size_px
    middle = (torch.arange(frames) - (frames - 1) / 2)[None] * speed[:, None]  # (count, T)
    start = size_px / 2 - 0.5
    x = uniform(-0.15, 0.15)[:, None] * size_px + start + middle * torch.cos(angle)[:, None]
    y = uniform(-0.15, 0.15)[:, None] * size_px + start + middle * torch.sin(angle)[:, None]
    position = torch.arange(size_px, dtype=torch.float32)
    across = (position - x[..., None])[..., None, :].abs()  # (count, T, 1, W)
    down = (position - y[..., None])[..., :, None].abs()  # (count, T, H, 1)
    is_disc = (torch.rand(count, generator=generator) < 0.5)[:, None, None, None]
    distance = torch.where(is_disc, torch.hypot(across, down), torch.maximum(across, down))
    shape = (radius[:, None, None, None] - distance).clamp(0, 1)
    noise = torch.randn(shape.shape, generator=generator)
    return (shape + 0.3 * noise)[..., None], labels


def run(options: Video) -> None:
    options.check()
    torch.manual_seed(options.seed)
    model = VideoPico()
    parameters = sum(p.numel() for p in model.parameters())
    say(f"a network of {parameters} parameters, {options.steps} steps of {options.batch_size} clips")
    began = time.perf_counter()
    _train(model, options)
    seconds = time.perf_counter() - began
    say(f"direction of {options.test_clips} new clips: {accuracy(model, options):.1f} % correct; {seconds:.0f} s of training")


def _train(model: nn.Module, options: Video) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total_steps=options.steps)
    model.train()
    for step in range(options.steps):
        clips, labels = moving_shapes(options.batch_size, options.frames, options.size_px, options.seed + step)
        loss = F.cross_entropy(model(clips), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            say(f"step {step}: loss {loss.item():.3f}")


@torch.no_grad()
def accuracy(model: nn.Module, options: Video) -> float:
    """Percent of new clips whose direction is right."""
    model.eval()
    clips, labels = moving_shapes(options.test_clips, options.frames, options.size_px, options.seed + _TEST_SEED)
    found = torch.cat([model(part).argmax(1) for part in clips.split(options.batch_size)])
    return 100 * (found == labels).float().mean().item()
