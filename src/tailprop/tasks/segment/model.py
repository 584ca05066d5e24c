"""UPerNet on any timm backbone, with the decoder of segmentation-models-pytorch and an auxiliary head.

Shapes: B batch, H height, W width of the images, K classes. Each stage's output is normalised before both heads, as in the
segmenters of Swin, ConvNeXt and vHeat.
"""

import copy
from typing import Any

import timm
import torch
import torch.nn.functional as F
from segmentation_models_pytorch.decoders.upernet.decoder import UPerNetDecoder
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from tailprop.backbone.cost import count_macs
from tailprop.backbone.weights import WarmStartReport
from tailprop.engine.config import ModelConfig
from tailprop.tasks.common.pyramid import create_stages, no_weight_decay_names, start_from
from tailprop.tasks.segment.config import SegmenterConfig

__all__ = ["Segmenter", "create_segmenter", "segmenter_macs"]


class Segmenter(nn.Module):
    """Logits for every pixel: (B, 3, H, W) -> (B, K, H, W); in training also those of the auxiliary head, if there is one.

    Args:
        stages: A backbone made with timm's `features_only`, four stages.
        num_classes: K.
        multiple_px: Images are padded to multiples of this for the backbone, and the logits are cropped again.
    """

    def __init__(self, stages: nn.Module, num_classes: int, config: SegmenterConfig, multiple_px: int = 1) -> None:
        super().__init__()
        self.num_classes, self.multiple_px = num_classes, multiple_px
        self.backbone = stages
        widths: list[int] = stages.feature_info.channels()  # type: ignore[operator, union-attr]
        self.norms = nn.ModuleList(LayerNorm2d(width) for width in widths)
        self.decoder = UPerNetDecoder([0, 0, *widths], decoder_channels=config.channels)  # maps at 1/1 and 1/2 are not used
        self.decoder.feature_norms = nn.ModuleList(nn.Identity() for _ in widths)  # `norms` is shared with the auxiliary head
        self.head = _classifier(config.channels, num_classes, config.dropout)
        self.aux = _auxiliary(widths[2], num_classes, config) if config.aux_weight > 0 else None
        for module in (self.decoder, self.head, self.aux):
            if module is not None:
                module.apply(_init_module)

    @property
    def body(self) -> nn.Module:
        return self.backbone.model  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Any:
        h, w = x.shape[-2:]
        if self.multiple_px > 1:
            x = F.pad(x, (0, -w % self.multiple_px, 0, -h % self.multiple_px))
        maps = [norm(f) for norm, f in zip(self.norms, self.backbone(x), strict=True)]  # 1/4, 1/8, 1/16, 1/32
        logits = enlarge(self.head(self.decoder([None, None, *maps])), x.shape[-2:])[..., :h, :w]
        if not self.training or self.aux is None:
            return logits
        return logits, enlarge(self.aux(maps[2]), x.shape[-2:])[..., :h, :w]

    def no_weight_decay(self) -> set[str]:
        return no_weight_decay_names(self.body, "backbone.model")

    def output_layers(self) -> list[nn.Module]:
        return [self.head[-1]] if self.aux is None else [self.head[-1], self.aux[-1]]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.body.set_grad_checkpointing(enable)  # type: ignore[operator]


def enlarge(logits: Tensor, size: torch.Size | tuple[int, int]) -> Tensor:
    """Resize bilinearly in FP32: with the 8-bit precision of BF16 close classes would tie."""
    return F.interpolate(logits.float(), size, mode="bilinear", align_corners=False)


def _classifier(width: int, num_classes: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Dropout2d(dropout), nn.Conv2d(width, num_classes, 1))


def _auxiliary(width: int, num_classes: int, config: SegmenterConfig) -> nn.Sequential:
    """A fully convolutional head: one 3x3 convolution, then the classifier."""
    c = config.aux_channels
    conv = nn.Conv2d(width, c, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c), nn.ReLU(inplace=True), *_classifier(c, num_classes, config.dropout))


def _init_module(module: nn.Module) -> None:
    """He initialization for convolutions before a ReLU; classifiers start near zero."""
    if isinstance(module, nn.Conv2d) and module.bias is None:
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Conv2d):
        nn.init.normal_(module.weight, std=0.01)
        nn.init.zeros_(module.bias)  # type: ignore[arg-type]


def create_segmenter(model: ModelConfig, num_classes: int, config: SegmenterConfig) -> tuple[Segmenter, WarmStartReport | None]:
    """A segmenter whose backbone has random weights or those of a classifier's checkpoint."""
    multiple_px = 32 if timm.get_pretrained_cfg_value(model.name, "fixed_input_size") else 1  # Swin; TailProp takes any size
    segmenter = Segmenter(create_stages(model, "a segmenter"), num_classes, config, multiple_px)
    return segmenter, start_from(segmenter, segmenter.body, model, head="decoder.")


def segmenter_macs(segmenter: Segmenter, height: int = 512, width: int = 512) -> int:
    """Multiply-adds for one image of this size, without the auxiliary head, counted on the meta device."""
    return count_macs(copy.deepcopy(segmenter).to("meta").eval(), height, width)
