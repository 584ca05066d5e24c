"""TailProp backbones: stem, TPO block, TPO layer, stage, network, from top to bottom.

Shapes: B batch, H height, W width of the current map, C channels. Inputs are (B, 3, H, W) and features are (B, C, H/r, W/r),
timm's convention; in between everything is channels-last, (B, H, W, C), so that linears, norms and cosine transforms need no
transposes, and a convolution sees the same memory as PyTorch's channels_last format.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.fx
import torch.nn.functional as F
from timm.layers import ClassifierHead, calculate_drop_path_rates, trunc_normal_
from timm.models import checkpoint, named_apply
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from ._checks import check_at_least, check_choice
from .capture import sharing_constants
from .fused import FusedTPOLayer
from .layers import MLP, StochasticDepth, in_slices, init_module, to_nchw, to_nhwc
from .linear import Linear
from .mixers import build_mixer, resample_embedding

__all__ = ["TPOBlock", "TPOLayer", "TPOStage", "TailProp", "init_module", "to_nchw", "to_nhwc"]

MIN_SIZE_PX: Final = 32


class Stem(nn.Module):
    """Two stride-2 convolutions with a norm after each and GELU between: (B, 3, H, W) -> (B, H/4, W/4, C)."""

    def __init__(self, in_chans: int, dim: int, **dd: Any) -> None:
        super().__init__()
        self.growth = dim / 2 / 4 / in_chans  # size of the first convolution's output over that of the image
        self.conv1 = nn.Conv2d(in_chans, dim // 2, 3, stride=2, padding=1, **dd)
        self.norm1 = nn.LayerNorm(dim // 2, eps=1e-6, **dd)
        self.act = nn.GELU()
        self.conv2 = nn.Conv2d(dim // 2, dim, 3, stride=2, padding=1, **dd)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6, **dd)

    def forward(self, x: Tensor) -> Tensor:
        return in_slices(self._embed, x, self.growth, self)

    def _embed(self, x: Tensor) -> Tensor:
        x = self.act(self.norm1(to_nhwc(self.conv1(x))))  # (B, H/2, W/2, C/2)
        return self.norm2(to_nhwc(self.conv2(to_nchw(x))))  # (B, H/4, W/4, C)


class Downsample(nn.Module):
    """Stride-2 convolution without bias, then a norm: (B, H, W, C) -> (B, H/2, W/2, C'); with stride 1, the size is kept."""

    def __init__(self, dim: int, out_dim: int, stride: int = 2, dilation: int = 1, **dd: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, out_dim, 3, stride, padding=dilation, dilation=dilation, bias=False, **dd)
        self.norm = nn.LayerNorm(out_dim, **dd)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(to_nhwc(self.conv(to_nchw(x))))


class TPOBlock(nn.Module):
    """LayerNorm(TPO(p)) * SiLU(g) between projections, (p, g) = Linear(DWConv(X)) (Appendix F of the paper)."""

    def __init__(self, dim: int, mixer: nn.Module, dilation: int = 1, **dd: Any) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 3, padding=dilation, dilation=dilation, groups=dim, **dd)
        self.in_proj = Linear(dim, 2 * dim, **dd)
        self.mixer = mixer
        self.norm = nn.LayerNorm(dim, **dd)
        self.out_proj = Linear(dim, dim, **dd)

    def forward(self, x: Tensor, *embedding: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H, W, C)
        x = to_nhwc(self.dwconv(to_nchw(x)))
        prop, gate = self.in_proj(x).chunk(2, dim=-1)
        return self.out_proj(self.norm(self.mixer(prop, *embedding)) * F.silu(gate))


class TPOLayer(nn.Module):
    """Residual TPO block, then residual MLP; norms before each branch, or after it with a layer scale."""

    def __init__(
        self,
        dim: int,
        mixer: nn.Module,
        mlp_ratio: float = 4.0,
        post_norm: bool = False,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        dilation: int = 1,
        **dd: Any,
    ) -> None:
        super().__init__()
        self.post_norm, self.layer_scale = post_norm, layer_scale
        self.growth = mlp_ratio  # size of the MLP's hidden layer over that of the map
        self.norm1 = nn.LayerNorm(dim, **dd)
        self.block = TPOBlock(dim, mixer, dilation, **dd)
        self.norm2 = nn.LayerNorm(dim, **dd)
        self.mlp = MLP(dim, mlp_ratio, **dd)
        self.gamma1 = nn.Parameter(torch.empty(dim, **dd)) if layer_scale is not None else None
        self.gamma2 = nn.Parameter(torch.empty(dim, **dd)) if layer_scale is not None else None
        self.drop_path = StochasticDepth(drop_path)

    def reset_parameters(self) -> None:
        for gamma in (self.gamma1, self.gamma2):
            if gamma is not None and self.layer_scale is not None:
                nn.init.constant_(gamma, self.layer_scale)

    def forward(self, x: Tensor, *embedding: Tensor) -> Tensor:
        x = self.drop_path(x, lambda kept: self._propagate(kept, *embedding), self)
        return self.drop_path(x, self._expand, self)

    def _propagate(self, x: Tensor, *embedding: Tensor) -> Tensor:
        y = self.norm1(self.block(x, *embedding)) if self.post_norm else self.block(self.norm1(x), *embedding)
        return y if self.gamma1 is None else self.gamma1 * y

    def _expand(self, x: Tensor) -> Tensor:
        y = self.norm2(self.mlp(x)) if self.post_norm else self.mlp(self.norm2(x))
        return y if self.gamma2 is None else self.gamma2 * y

    def fuse(self) -> nn.Module:
        """The same for inference (`fused`), where that is known."""
        return FusedTPOLayer(self) if FusedTPOLayer.takes(self) else self


class TPOStage(nn.Module):
    """Downsampling (none in the first stage), then layers at one resolution."""

    def __init__(
        self,
        dim: int,
        layers: Sequence[nn.Module],
        downsample: nn.Module | None = None,
        embedding_size: tuple[int, int] | None = None,
        **dd: Any,
    ) -> None:
        super().__init__()
        self.grad_checkpointing = False
        self.growth = float(layers[0].growth)  # type: ignore[arg-type]
        self.downsample = downsample if downsample is not None else nn.Identity()
        self.freq_embed = nn.Parameter(torch.empty(*embedding_size, dim, **dd)) if embedding_size else None
        self.layers = nn.ModuleList(layers)

    def reset_parameters(self) -> None:
        if self.freq_embed is not None:
            trunc_normal_(self.freq_embed, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return in_slices(self._run_layers, self.downsample(x), self.growth, self)

    def _run_layers(self, x: Tensor) -> Tensor:
        embedding = () if self.freq_embed is None else (resample_embedding(self.freq_embed, x),)
        with sharing_constants():
            for layer in self.layers:
                x = checkpoint(layer, x, *embedding) if self.grad_checkpointing else layer(x, *embedding)
        return x


class TailProp(nn.Module):
    """Hierarchical backbone of TPO layers at 1/4, 1/8, 1/16 and 1/32 of the image (Appendix C of the paper).

    Args:
        in_chans: Channels of the image.
        num_classes: Classes of the head; 0 for no classifier.
        global_pool: Pooling before the classifier, as in timm; "" for none, with num_classes=0.
        depths: Layers of each stage.
        dims: Channels of each stage.
        mixer: A variant of the operator ("tailprop", "gaussian", "cauchy", "fixed", "learnable", "dual_gaussian",
            "adaptive_alpha"), a rival ("heat", "wave", "gfnet", "afno", "attention") or a control ("conv7", "conv31", "pool",
            "identity").
        mixer_args: Further settings of the mixer, for example dict(orders=(2.0, 1.5, 1.0)) for `TailPropagation`.
        mlp_ratio: Hidden width of the MLP over its input.
        post_norm: Norm after each branch instead of before it.
        layer_scale: Initial value of a learned scale on each branch; None for no layer scale.
        drop_rate: Dropout before the classifier.
        drop_path_rate: Stochastic depth rate of the last layer; the rates rise linearly from 0.
        output_stride: Image size over the size of the last map: 32, or 16 or 8 for dense prediction. The last stages then keep
            their resolution with dilated convolutions, and propagate as far as before.
        img_size: Image size that the frequency embeddings of heat and wave and the filters of gfnet are stored for (they are
            resampled for others). The parameters of the other mixers do not depend on the image size.
    """

    stem_type: type[nn.Module] = Stem
    downsample_type: type[nn.Module] = Downsample
    layer_type: type[nn.Module] = TPOLayer
    first_propagating: int = 0  # stages before this one have no mixer

    def __init__(
        self,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        depths: Sequence[int] = (2, 2, 6, 2),
        dims: Sequence[int] = (96, 192, 384, 768),
        mixer: str = "tailprop",
        mixer_args: dict[str, Any] | None = None,
        mlp_ratio: float = 4.0,
        post_norm: bool = False,
        layer_scale: float | None = None,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        output_stride: int = 32,
        img_size: int | tuple[int, int] = 224,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(in_chans, num_classes, depths, dims, drop_path_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_chans, self.num_classes, self.drop_rate = in_chans, num_classes, drop_rate
        self.num_features = self.head_hidden_size = dims[-1]
        strides = _strides(len(depths), output_stride)
        self.feature_info = [
            dict(num_chs=dim, reduction=stride, module=f"stages.{i}")
            for i, (dim, stride) in enumerate(zip(dims, strides, strict=True))
        ]

        self.stem = self.stem_type(in_chans, dims[0], **dd)
        stages = []
        for i, rates in enumerate(calculate_drop_path_rates(drop_path_rate, list(depths), stagewise=True)):
            dim, dilation, usual_size = dims[i], 4 * 2**i // strides[i], _map_size(img_size, 4 * 2**i)
            kind, settings = (mixer, mixer_args or {}) if i >= self.first_propagating else ("identity", {})
            mixers = [build_mixer(kind, dim, usual_size, **settings, **dd) for _ in rates]
            for m in mixers:  # without downsampling the map is finer: the scales keep their meaning as distances
                m.spacing = 1 / dilation
            layers = [
                self.layer_type(dim, m, mlp_ratio, post_norm, layer_scale, rate, dilation, **dd)
                for m, rate in zip(mixers, rates, strict=True)
            ]
            downsample = None
            if i:
                before = 4 * 2 ** (i - 1) // strides[i - 1]
                downsample = self.downsample_type(dims[i - 1], dim, strides[i] // strides[i - 1], before, **dd)
            embedding_size = _map_size(img_size, strides[i]) if mixers[0].needs_frequency_embedding else None
            stages.append(TPOStage(dim, layers, downsample, embedding_size, **dd))
        self.stages = nn.Sequential(*stages)
        self.norm: nn.Module = nn.LayerNorm(self.num_features, **dd)
        self.head = ClassifierHead(self.num_features, num_classes, pool_type=global_pool, drop_rate=drop_rate, **dd)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every parameter, also after `to_empty`."""
        named_apply(init_module, self)  # children before parents: an operator may adjust the linears of its gate

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Scales, gates and orders: decay would pull them towards arbitrary values."""
        return {
            f"{name}.{parameter}"
            for name, module in self.named_modules()
            for parameter in getattr(module, "no_decay", ())
            if getattr(module, parameter) is not None
        }

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns that timm uses to group parameters for layer-wise learning rate decay."""
        if coarse:
            return dict(stem=r"^stem", blocks=r"^stages\.(\d+)")
        return dict(
            stem=r"^stem",
            blocks=[
                (r"^stages\.(\d+)\.(?:downsample|freq_embed)", (0,)),
                (r"^stages\.(\d+)\.layers\.(\d+)", None),
                (r"^norm", (99999,)),
            ],
        )

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep only the inputs of each layer for the backward pass and recompute the rest."""
        for stage in self.stages:
            assert isinstance(stage, TPOStage)
            stage.grad_checkpointing = enable

    @torch.jit.ignore
    def get_classifier(self) -> nn.Module:
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        _check_num_classes(num_classes)
        self.num_classes = num_classes
        weight = next(self.stem.parameters())
        self.head.reset(num_classes, global_pool, device=weight.device, dtype=weight.dtype)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Features of the selected stages, and the final features unless `intermediates_only`.

        Args:
            x: Images, (B, 3, H, W).
            indices: Selected stages: a list, the last n if a number, all if None.
            norm: Apply the final norm to the last stage's features.
            stop_early: Skip the stages after the last selected one.
            output_fmt: "NCHW" or "NHWC" for the intermediates.
            intermediates_only: Return the list alone.
        """
        check_choice("output_fmt", output_fmt, ("NCHW", "NHWC"))
        taken, last_taken = feature_take_indices(len(self.stages), indices)
        stages = self.stages[: last_taken + 1] if stop_early else self.stages
        x = self.stem(require_size(x, self.in_chans))
        intermediates = []
        for i, stage in enumerate(stages):
            x = stage(x)
            if i in taken:
                y = self.norm(x) if norm and i == len(self.stages) - 1 else x
                intermediates.append(to_nchw(y) if output_fmt == "NCHW" else y)
        if intermediates_only:
            return intermediates
        if len(stages) == len(self.stages):
            x = self.norm(x)
        return to_nchw(x), intermediates

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the modules that the selected stages do not need."""
        taken, last_taken = feature_take_indices(len(self.stages), indices)
        cut = last_taken + 1 < len(self.stages)
        self.stages = self.stages[: last_taken + 1]
        if prune_norm or cut:  # the norm has the width of the last stage
            self.norm = nn.Identity()
        if prune_head:
            self.head = nn.Identity()
            self.num_classes = 0
        return taken

    def forward_features(self, x: Tensor) -> Tensor:  # (B, 3, H, W) -> (B, C, H/32, W/32)
        x = self.stem(require_size(x, self.in_chans))
        return to_nchw(self.norm(self.stages(x)))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(x, pre_logits=True) if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def require_size(x: Tensor, in_chans: int) -> Tensor:
    """x, after a check of its shape."""
    if x.ndim != 4 or x.shape[1] != in_chans:
        raise ValueError(f"expected images of shape (batch, {in_chans}, height, width), got {tuple(x.shape)}")
    if x.shape[2] < MIN_SIZE_PX or x.shape[3] < MIN_SIZE_PX:
        raise ValueError(
            f"the image is {x.shape[2]}x{x.shape[3]} px, smaller than the {MIN_SIZE_PX}x{MIN_SIZE_PX} the four stages "
            "need; resize or pad it"
        )
    return x


torch.fx.wrap("require_size")
torch.fx.wrap("resample_embedding")


def _check_sizes(in_chans: int, num_classes: int, depths: Sequence[int], dims: Sequence[int], drop_path_rate: float) -> None:
    check_at_least("in_chans", in_chans, 1)
    _check_num_classes(num_classes)
    if len(depths) != len(dims) or len(depths) == 0:
        raise ValueError(f"depths and dims need one entry for each stage, got {tuple(depths)} and {tuple(dims)}")
    for depth in depths:
        check_at_least("each of depths", depth, 1)
    if not 0 <= drop_path_rate < 1:
        raise ValueError(f"drop_path_rate must be in [0, 1), got {drop_path_rate}")
    if dims[0] < 2 or dims[0] % 2:
        raise ValueError(f"dims[0] must be even, because the stem's first convolution has half as many channels; got {dims[0]}")


def _check_num_classes(num_classes: int) -> None:
    if num_classes < 0:
        raise ValueError(f"num_classes must be at least 1, or 0 for a model without a classifier; got {num_classes}")


def _strides(num_stages: int, output_stride: int) -> list[int]:
    """Stride of each stage relative to the image, at most `output_stride`."""
    if output_stride not in (8, 16, 32):
        raise ValueError(f"output_stride must be 8, 16 or 32, got {output_stride}")
    return [min(4 * 2**i, output_stride) for i in range(num_stages)]


def _map_size(img_size: int | tuple[int, int], reduction: int) -> tuple[int, int]:
    """Size of the feature map; each stride-2 convolution rounds up."""
    h, w = (img_size, img_size) if isinstance(img_size, int) else img_size
    check_at_least("img_size", min(h, w), MIN_SIZE_PX)
    return -(-h // reduction), -(-w // reduction)
