"""The network of the suite: one resolution, a few TPO layers, any mixer.

Shapes: B batch, H height, W width, C channels. Only mixers pass information far; a layer's convolution
reaches one position.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from timm.models import checkpoint, named_apply
from torch import Tensor, nn

from tailprop.backbone.mixers import MIXERS, build_mixer, resample_embedding
from tailprop.backbone.model import TPOLayer, init_module, to_nchw, to_nhwc
from tailprop.utils.validation import check_at_least, check_choice

__all__ = ["ReachNet"]


class ReachNet(nn.Module):
    """A 3x3 convolution, TPO layers at one resolution, a linear head.

    Args:
        in_chans: Channels of the input.
        outputs: Channels of the output.
        dim: Channels C of the body.
        depth: Layers.
        mixer: Any mixer of the backbone.
        mixer_args: Further settings of the mixer.
        mlp_ratio: Ratio of the MLP's hidden width to its input width.
        patch_px: Squares of this side become one position (pixel unshuffle), and the output is shuffled back.
        drop_path_rate: Stochastic depth rate of every layer.
        map_px: Side of the map that parameters of heat, wave and gfnet are stored for; they are resampled for others.
    """

    def __init__(
        self,
        in_chans: int,
        outputs: int,
        dim: int = 48,
        depth: int = 4,
        mixer: str = "tailprop",
        mixer_args: dict[str, Any] | None = None,
        mlp_ratio: float = 2.0,
        patch_px: int = 1,
        drop_path_rate: float = 0.0,
        map_px: int = 32,
    ) -> None:
        super().__init__()
        check_choice("mixer", mixer, tuple(MIXERS))
        for name, value in (("dim", dim), ("depth", depth), ("patch_px", patch_px), ("map_px", map_px)):
            check_at_least(name, value, 1)
        self.in_chans, self.patch_px, self.grad_checkpointing = in_chans, patch_px, False
        self.stem = nn.Conv2d(in_chans * patch_px**2, dim, 3, padding=1)
        mixers = [build_mixer(mixer, dim, (map_px, map_px), **(mixer_args or {})) for _ in range(depth)]
        self.freq_embed = nn.Parameter(torch.empty(map_px, map_px, dim)) if mixers[0].needs_frequency_embedding else None
        self.layers = nn.ModuleList(TPOLayer(dim, m, mlp_ratio, drop_path=drop_path_rate) for m in mixers)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, outputs * patch_px**2)
        self.init_weights()

    def init_weights(self) -> None:
        named_apply(init_module, self)
        if self.freq_embed is not None:
            trunc_normal_(self.freq_embed, std=0.02)

    def head_layers(self) -> list[nn.Module]:
        return [self.head]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:  # noqa: ARG002 - timm's signature
        return dict(stem=r"^(?:stem|freq_embed)", blocks=[(r"^layers\.(\d+)", None), (r"^norm", (99999,))])

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def forward(self, x: Tensor) -> Tensor:  # (B, in_chans, H, W) -> (B, outputs, H, W)
        h, w = x.shape[-2:]
        p = self.patch_px
        x = F.pixel_unshuffle(F.pad(x, (0, -w % p, 0, -h % p)), p)
        y = to_nhwc(self.stem(x))  # (B, H/p, W/p, C)
        embedding = () if self.freq_embed is None else (resample_embedding(self.freq_embed, y),)
        for layer in self.layers:
            y = checkpoint(layer, y, *embedding) if self.grad_checkpointing else layer(y, *embedding)
        return F.pixel_shuffle(to_nchw(self.head(self.norm(y))), p)[..., :h, :w]
