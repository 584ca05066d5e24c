"""Networks that restore images: SwinIR's body with a choice of mixers, and DnCNN.

Shapes: B batch, H height, W width, C channels, p the side of a patch, s the scale of super-resolution, else 1. Inputs and
outputs are images of any size, (B, in_chans, H, W), with values around [0, 1]; inside the body maps are channels-last,
(B, H, W, C), as in `backbone`.

The body (SwinIR, Liang et al. 2021): a 3x3 convolution, residual groups of layers that each end in a convolution, a long
skip connection over all groups, an output convolution. Its output is added to the input: the network learns the degradation.
For super-resolution the output convolution has s^2 values for each pixel, which become a square of pixels (the pixel shuffle of
SwinIR's lightweight networks), and the input is enlarged bicubically; SwinIR adds nothing.
"""

import inspect
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from timm.layers import calculate_drop_path_rates, trunc_normal_
from timm.models import checkpoint, named_apply
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn

from tailprop.backbone.capture import sharing_constants
from tailprop.backbone.mixers import MIXERS, build_mixer, resample_embedding
from tailprop.backbone.model import TPOLayer, init_module, to_nchw, to_nhwc
from tailprop.tasks.restore.padding import pad_to_multiple
from tailprop.tasks.restore.unet import UNETS, TailPropUNet
from tailprop.utils.validation import check_at_least, check_between, check_choice

__all__ = ["RESTORERS", "DnCNN", "TailPropIR", "create_restorer"]

WINDOW: Final = "window"  # SwinIR's mixer, in addition to those of the backbones
RGB_MEAN: Final = (0.4488, 0.4371, 0.4040)  # of DIV2K; SwinIR subtracts it from colour images


class WindowLayer(nn.Module):
    """SwinIR's layer: attention within windows, shifted in every second layer, then an MLP: timm's block for any input size."""

    needs_frequency_embedding: Final = False

    def __init__(self, dim: int, num_heads: int, window_px: int, shifted: bool, mlp_ratio: float, drop_path: float) -> None:
        super().__init__()
        self.block = SwinTransformerBlock(
            dim,
            (window_px, window_px),  # nominal: dynamic_mask computes masks for the actual size
            num_heads,
            window_size=window_px,
            shift_size=window_px // 2 if shifted else 0,
            always_partition=True,
            dynamic_mask=True,
            mlp_ratio=mlp_ratio,
            drop_path=drop_path,
        )

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        return self.block(x)


class ResidualGroup(nn.Module):
    """Layers, then a 3x3 convolution, all of it added to the input."""

    def __init__(self, dim: int, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.grad_checkpointing = False
        self.layers = nn.ModuleList(layers)
        self.conv = nn.Conv2d(dim, dim, 3, padding=1)

    def forward(self, x: Tensor, *embedding: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        y = x
        for layer in self.layers:
            y = checkpoint(layer, y, *embedding) if self.grad_checkpointing else layer(y, *embedding)
        return x + to_nhwc(self.conv(to_nchw(y)))


class TailPropIR(nn.Module):
    """SwinIR's body with its token mixers replaced (the paper's cross-backbone table).

    Args:
        in_chans: Channels of the images: 1 gray, 3 colour.
        dim: Channels C of the body.
        depths: Layers of each residual group.
        mixer: Replacement for window attention: any mixer of the backbone in its TPO block; or "window", which is SwinIR.
        mixer_args: Further settings of the mixer.
        mlp_ratio: Ratio of the MLP's hidden width to its input width.
        num_heads: Heads of window attention.
        window_px: Side of its windows, in positions of the map. SwinIR uses 8, but 7 for JPEG, whose blocks have 8.
        drop_path_rate: Stochastic depth rate of the last layer; rates rise linearly from 0.
        img_range: Value of white inside the network; SwinIR uses 255 for JPEG.
        patch_px: Squares of this side become channels of one position (pixel unshuffle), and the output is shuffled back. 1 is
            SwinIR; 2 needs a quarter of the compute, and the light sizes use it to be trainable on a CPU.
        embedding_px: Side of the frequency embedding that all heat or wave layers share, and of the filter of each gfnet layer.
        upscale: Scale s of super-resolution; 1 restores at the size of the input.
    """

    mean: Tensor

    def __init__(
        self,
        in_chans: int = 1,
        dim: int = 180,
        depths: Sequence[int] = (6, 6, 6, 6, 6, 6),
        mixer: str = "tailprop",
        mixer_args: dict[str, Any] | None = None,
        mlp_ratio: float = 2.0,
        num_heads: int = 6,
        window_px: int = 8,
        drop_path_rate: float = 0.0,
        img_range: float = 1.0,
        patch_px: int = 1,
        embedding_px: int = 128,
        upscale: int = 1,
    ) -> None:
        super().__init__()
        check_choice("mixer", mixer, (*MIXERS, WINDOW))
        _check_body(in_chans, dim, depths, drop_path_rate, mlp_ratio, img_range)
        for name, value in (("num_heads", num_heads), ("window_px", window_px), ("patch_px", patch_px)):
            check_at_least(name, value, 1)
        check_at_least("embedding_px", embedding_px, 1)
        check_at_least("upscale", upscale, 1)
        if mixer == WINDOW and dim % num_heads:
            raise ValueError(f"dim must be a multiple of the {num_heads} heads, got {dim}")
        self.in_chans, self.img_range, self.patch_px, self.upscale = in_chans, img_range, patch_px, upscale
        self.window_px = window_px if mixer == WINDOW else 1
        mean = RGB_MEAN if in_chans == 3 else (0.0,) * in_chans
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.conv_in = nn.Conv2d(in_chans * patch_px**2, dim, 3, padding=1)
        self.norm_in = nn.LayerNorm(dim)
        groups = []
        for rates in calculate_drop_path_rates(drop_path_rate, list(depths), stagewise=True):
            layers: list[nn.Module] = []
            for i, rate in enumerate(rates):
                if mixer == WINDOW:
                    layers.append(WindowLayer(dim, num_heads, window_px, bool(i % 2), mlp_ratio, rate))
                else:
                    mixed = build_mixer(mixer, dim, (embedding_px, embedding_px), **(mixer_args or {}))
                    layers.append(TPOLayer(dim, mixed, mlp_ratio, drop_path=rate))
            groups.append(ResidualGroup(dim, layers))
        self.groups = nn.ModuleList(groups)
        first = groups[0].layers[0]
        embeds = isinstance(first, TPOLayer) and bool(first.block.mixer.needs_frequency_embedding)
        self.freq_embed = nn.Parameter(torch.empty(embedding_px, embedding_px, dim)) if embeds else None
        self.norm = nn.LayerNorm(dim)
        self.conv_body = nn.Conv2d(dim, dim, 3, padding=1)
        self.conv_out = nn.Conv2d(dim, in_chans * (patch_px * upscale) ** 2, 3, padding=1)
        self.init_weights()

    def init_weights(self) -> None:
        named_apply(init_module, self)
        if self.freq_embed is not None:
            trunc_normal_(self.freq_embed, std=0.02)
        for parameter in self.conv_out.parameters():  # the network starts as the identity
            nn.init.zeros_(parameter)

    def head_layers(self) -> list[nn.Module]:
        return [self.conv_out]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns that timm uses to group parameters for layer-wise learning rate decay."""
        stem, last = r"^(?:conv_in|norm_in|freq_embed)", (r"^(?:norm|conv_body)", (99999,))
        if coarse:
            return dict(stem=stem, blocks=[(r"^groups\.(\d+)", None), last])
        return dict(stem=stem, blocks=[(r"^groups\.(\d+)\.layers\.(\d+)", None), (r"^groups\.(\d+)\.conv", (99999,)), last])

    @property
    def grid_px(self) -> int:
        """Side in pixels of the grid that patches and windows divide an image into."""
        return self.patch_px * self.window_px

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Store only the inputs of each layer for the backward pass and recompute the rest."""
        for group in self.groups:
            assert isinstance(group, ResidualGroup)
            group.grad_checkpointing = enable

    def forward(self, x: Tensor) -> Tensor:  # (B, in_chans, H, W) -> (B, in_chans, sH, sW)
        h, w = (self.upscale * side for side in x.shape[-2:])
        padded = pad_to_multiple((x - self.mean) * self.img_range, self.grid_px)
        patches = F.pixel_unshuffle(padded, self.patch_px)  # (B, in_chans p^2, H/p, W/p)
        residual = F.pixel_shuffle(self.conv_out(to_nchw(self._body(patches))), self.patch_px * self.upscale)
        return _enlarge(x, self.upscale) + residual[..., :h, :w] / self.img_range

    def _body(self, patches: Tensor) -> Tensor:
        shallow = to_nhwc(self.conv_in(patches))  # (B, H/p, W/p, C)
        y = self.norm_in(shallow)
        embedding = () if self.freq_embed is None else (resample_embedding(self.freq_embed, y),)
        with sharing_constants():
            for group in self.groups:
                y = group(y, *embedding)
        return shallow + to_nhwc(self.conv_body(to_nchw(self.norm(y))))


class DnCNN(nn.Module):
    """Zhang et al. 2017: a chain of 3x3 convolutions with batch norm that predicts the noise; 17 layers gray, 20 colour."""

    def __init__(self, in_chans: int = 1, dim: int = 64, depth: int | None = None) -> None:
        super().__init__()
        depth = depth if depth is not None else (17 if in_chans == 1 else 20)
        check_at_least("depth", depth, 2)
        self.in_chans = in_chans
        self.grad_checkpointing = False
        self.conv_in = nn.Conv2d(in_chans, dim, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(dim, dim, 3, padding=1, bias=False), nn.BatchNorm2d(dim), nn.ReLU())
            for _ in range(depth - 2)
        )
        self.conv_out = nn.Conv2d(dim, in_chans, 3, padding=1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        for parameter in self.conv_out.parameters():  # the network starts as the identity
            nn.init.zeros_(parameter)

    def head_layers(self) -> list[nn.Module]:
        return [self.conv_out]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:  # noqa: ARG002 - timm's signature
        return dict(stem=r"^conv_in", blocks=r"^layers\.(\d+)")

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def forward(self, x: Tensor) -> Tensor:  # (B, in_chans, H, W) -> the same
        y = F.relu(self.conv_in(x))
        for layer in self.layers:
            y = checkpoint(layer, y) if self.grad_checkpointing else layer(y)
        return x - self.conv_out(y)


def _enlarge(x: Tensor, scale: int) -> Tensor:
    """Bicubic; with antialias, which changes nothing in a larger image but the kernel: a = -0.5 as in MATLAB, not -0.75."""
    if scale == 1:
        return x
    return F.interpolate(x, scale_factor=scale, mode="bicubic", antialias=True)


def _check_body(
    in_chans: int, dim: int, depths: Sequence[int], drop_path_rate: float, mlp_ratio: float, img_range: float
) -> None:
    check_at_least("in_chans", in_chans, 1)
    check_at_least("dim", dim, 1)
    check_between("drop_path_rate", drop_path_rate, 0, 1)
    if not mlp_ratio * dim >= 1:
        raise ValueError(f"mlp_ratio must give the MLP at least one channel, got {mlp_ratio}")
    if not img_range > 0:
        raise ValueError(f"img_range, the value of white inside the network, must be positive, got {img_range}")
    if not depths or min(depths) < 1:
        raise ValueError(f"depths needs at least one group of at least one layer, got {tuple(depths)}")


_PAPER = dict(dim=180, depths=(6, 6, 6, 6, 6, 6), num_heads=6, drop_path_rate=0.1, embedding_px=128)
_LIGHT = dict(dim=48, depths=(4, 4, 4), num_heads=4, patch_px=2, embedding_px=32)
_FAMILIES = {
    "tailprop_ir": "tailprop",
    "vheat_ir": "heat",
    "waveformer_ir": "wave",
    "swinir": WINDOW,
    "identity_ir": "identity",
}

# The paper's restoration networks, and light ones for a CPU; identity_ir is the control without propagation.
RESTORERS: Final[dict[str, dict[str, Any]]] = {
    **{family: dict(mixer=mixer, **_PAPER) for family, mixer in _FAMILIES.items()},
    **{f"{family}_light": dict(mixer=mixer, **_LIGHT) for family, mixer in _FAMILIES.items()},
    **UNETS,
    "dncnn": {},
}


def create_restorer(name: str, in_chans: int = 1, **settings: Any) -> nn.Module:
    """Create a restoration network by name; `settings` override its defaults."""
    check_choice("restoration model", name, tuple(RESTORERS))
    kind = DnCNN if name == "dncnn" else TailPropUNet if name in UNETS else TailPropIR
    if kind is not TailPropIR:
        if settings.get("upscale", 1) != 1:
            raise ValueError(f"{name} restores at the size of its input; choose another network for super-resolution")
        known, body = (inspect.signature(cls).parameters for cls in (kind, TailPropIR))
        # a recipe may be used for several networks, so settings of SwinIR's body are ignored
        settings = {key: value for key, value in settings.items() if key in known or key not in body}
    try:
        return kind(in_chans=in_chans, **(RESTORERS[name] | settings))
    except TypeError as error:
        raise ValueError(f"{name} does not take these arguments: {error}") from None
