"""TailPropUNet: convolutions where the map is fine, propagation where it is coarse.

Shapes: B batch, H height, W width, C channels, p the side of a patch. Inputs and outputs are images of any size,
(B, in_chans, H, W), with values around [0, 1]. Maps of convolutions are (B, C, h, w) in PyTorch's channels_last format, which a
CPU multiplies fastest; maps of TPO layers are (B, h, w, C), the same memory.

On a CPU a 3x3 convolution takes a fraction of the time of a TPO layer at the same position, but it sees only its neighbours.
So the fine levels have convolutions, and the coarsest has TPO layers, which pass information over the whole image. For p = 2
and three levels, a position of it stands for 8x8 pixels.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import torch
import torch.nn.functional as F
from timm.models import checkpoint
from torch import Tensor, nn

from tailprop.backbone.mixers import MIXERS, build_mixer
from tailprop.backbone.model import TPOLayer, init_module, to_nchw, to_nhwc
from tailprop.tasks.restore.padding import pad_to_multiple
from tailprop.utils.validation import check_at_least, check_choice

__all__ = ["UNETS", "TailPropUNet"]


class ConvBlock(nn.Module):
    """Two 3x3 convolutions with a ReLU between, added to the input."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, h, w) -> (B, C, h, w)
        return x + self.conv2(F.relu(self.conv1(x)))


class FineLevel(nn.Module):
    """A level with a skip connection: convolutions, then the coarser levels, added to the skip, then convolutions again."""

    def __init__(self, dim: int, coarse_dim: int, blocks: int) -> None:
        super().__init__()
        self.encode = nn.ModuleList(ConvBlock(dim) for _ in range(blocks))
        self.down = nn.Conv2d(dim, coarse_dim, 2, stride=2)
        self.up = nn.ConvTranspose2d(coarse_dim, dim, 2, stride=2)
        self.decode = nn.ModuleList(ConvBlock(dim) for _ in range(blocks))


class TailPropUNet(nn.Module):
    """A U-Net whose coarsest level propagates.

    Args:
        in_chans: Channels of the images: 1 gray, 3 colour.
        dims: Channels of each level; each has half the resolution of the one before.
        blocks: Blocks of convolutions of each level but the last, before the coarser levels and after them.
        depth: TPO layers of the coarsest level.
        mixer: Their mixer, any but heat and wave, whose embedding belongs to a map of one size.
        mixer_args: Further settings of the mixer.
        mlp_ratio: Ratio of the MLP's hidden width to its input width.
        patch_px: Squares of this side become channels of one position of the finest level (pixel unshuffle).
    """

    def __init__(
        self,
        in_chans: int = 1,
        dims: Sequence[int] = (48, 64, 96),
        blocks: int = 2,
        depth: int = 4,
        mixer: str = "tailprop",
        mixer_args: dict[str, Any] | None = None,
        mlp_ratio: float = 2.0,
        patch_px: int = 2,
    ) -> None:
        super().__init__()
        check_choice("mixer", mixer, tuple(name for name in MIXERS if name not in ("heat", "wave")))
        if not dims or min(dims) < 1:
            raise ValueError(f"dims needs at least one level of at least one channel, got {tuple(dims)}")
        for name, value in (("in_chans", in_chans), ("blocks", blocks), ("depth", depth), ("patch_px", patch_px)):
            check_at_least(name, value, 1)
        if not mlp_ratio * dims[-1] >= 1:
            raise ValueError(f"mlp_ratio must give the MLP at least one channel, got {mlp_ratio}")
        self.in_chans, self.patch_px, self.grid_px = in_chans, patch_px, patch_px * 2 ** (len(dims) - 1)
        self.grad_checkpointing = False
        self.conv_in = nn.Conv2d(in_chans * patch_px**2, dims[0], 3, padding=1)
        self.fine = nn.ModuleList(FineLevel(dim, coarse, blocks) for dim, coarse in pairwise(dims))
        mixers = (build_mixer(mixer, dims[-1], (_MAP, _MAP), **(mixer_args or {})) for _ in range(depth))
        self.layers = nn.ModuleList(TPOLayer(dims[-1], mixed, mlp_ratio) for mixed in mixers)
        self.layers.apply(init_module)
        self.conv_out = nn.Conv2d(dims[0], in_chans * patch_px**2, 3, padding=1)
        self._start_as_identity()

    def init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                module.reset_parameters()
        self.layers.apply(init_module)
        self._start_as_identity()

    def _start_as_identity(self) -> None:
        for parameter in self.conv_out.parameters():
            nn.init.zeros_(parameter)

    def output_layers(self) -> list[nn.Module]:
        """Layers that Muon leaves to AdamW."""
        return [self.conv_out]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Store only the inputs of each layer for the backward pass and recompute the rest."""
        self.grad_checkpointing = enable

    def forward(self, x: Tensor) -> Tensor:  # (B, in_chans, H, W) -> the same
        h, w = x.shape[-2:]
        patches = F.pixel_unshuffle(pad_to_multiple(x, self.grid_px), self.patch_px)  # (B, in_chans p^2, H/p, W/p)
        shallow = self.conv_in(patches.contiguous(memory_format=torch.channels_last))
        residual = F.pixel_shuffle(self.conv_out(shallow + self._level(shallow, 0)), self.patch_px)
        return x + residual[..., :h, :w]

    def _level(self, x: Tensor, place: int) -> Tensor:  # (B, C, h, w) -> (B, C, h, w)
        """A level and all that are coarser."""
        if place == len(self.fine):
            return x + to_nchw(self._run(self.layers, to_nhwc(x)))
        level = self.fine[place]
        assert isinstance(level, FineLevel)
        x = self._run(level.encode, x)
        return self._run(level.decode, x + level.up(self._level(level.down(x), place + 1)))

    def _run(self, layers: nn.ModuleList, x: Tensor) -> Tensor:
        for layer in layers:
            x = checkpoint(layer, x) if self.grad_checkpointing else layer(x)
        return x


_MAP: Final = 16  # side of the coarsest map of a crop of 128 px, for which initial lengths are chosen

UNETS: Final[dict[str, dict[str, Any]]] = {
    # A length for each channel, half of the channels normalized: `multiscale` as it was when the shipped weights were trained.
    "tailprop_unet": dict(dims=(48, 64, 96), mixer_args=dict(scale_mode="length", normalized_share=0.5)),
}
