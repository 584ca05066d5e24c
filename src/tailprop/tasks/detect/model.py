"""Mask R-CNN, or without masks Faster R-CNN, with a feature pyramid on any timm backbone, built on torchvision's detector.

Shapes: B batch, H height, W width of the padded images, C channels. Each stage's output is normalised before the pyramid, as
in the detectors of Swin, ConvNeXt and vHeat.
"""

import copy
from collections import OrderedDict
from typing import Final

import torch
import torch.nn.functional as F
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import LayerNorm2d
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.rpn import RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform, resize_boxes
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from tailprop.backbone.weights import WarmStartReport
from tailprop.data.resize import fit_within
from tailprop.engine.config import ModelConfig
from tailprop.tasks.common.models import check_finite
from tailprop.tasks.common.pyramid import create_stages, no_weight_decay_names, start_from
from tailprop.tasks.detect.config import LEVELS, DetectorConfig

__all__ = ["Detector", "Pyramid", "create_detector", "detector_macs"]

ASPECTS: Final = (0.5, 1.0, 2.0)  # of the anchors
PASTED: Final = 8  # masks resized to the image size at once
COUNTED_BOXES, COUNTED_MASKS = 1000, 100  # regions for which the heads are counted, as in mmdetection's get_flops


class Pyramid(nn.Module):
    """A backbone's four stages, a norm on each, and a feature pyramid: (B, 3, H, W) -> five maps of one width."""

    def __init__(self, body: nn.Module, channels: int) -> None:
        super().__init__()
        self.body = body
        widths: list[int] = body.feature_info.channels()  # type: ignore[operator, union-attr]
        self.norms = nn.ModuleList(LayerNorm2d(width) for width in widths)
        self.fpn = FeaturePyramidNetwork(widths, channels, extra_blocks=LastLevelMaxPool())
        self.out_channels = channels

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        stages = self.body(x)  # 1/4, 1/8, 1/16, 1/32
        maps = self.fpn(OrderedDict((level, norm(f)) for level, norm, f in zip(LEVELS, self.norms, stages, strict=True)))
        return OrderedDict((level, f.float()) for level, f in maps.items())


# torchvision computes coordinates in the dtype of the maps and of the heads' outputs. In BF16 a corner near 1000 px would be
# rounded to a multiple of 4, so under autocast the heads compute in BF16 and return FP32.


def _check_scores(scores: Tensor, training: bool) -> None:
    """Raise for NaN in evaluation: torchvision would drop it as below the threshold, and corrupt weights would find nothing."""
    if not training:
        check_finite(scores)


class ProposalHead(RPNHead):  # type: ignore[misc] # torchvision has no types
    def forward(self, maps: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        scores, offsets = super().forward(maps)
        for level in scores:
            _check_scores(level, self.training)
        return [s.float() for s in scores], [o.float() for o in offsets]


class BoxPredictor(FastRCNNPredictor):  # type: ignore[misc]
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, offsets = super().forward(x)
        _check_scores(scores, self.training)
        return scores.float(), offsets.float()


class MaskPredictor(MaskRCNNPredictor):  # type: ignore[misc]
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).float()


class Sizes(GeneralizedRCNNTransform):  # type: ignore[misc]
    """Resize images for the detector, and its boxes and masks back; training images are already resized.

    torchvision's transform can resize a side of a long thin image to 0, and keeps all masks of an image at full size in FP32.
    """

    def resize(self, image: Tensor, target: dict[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor] | None]:
        if self.training:
            return image, target
        h, w = image.shape[-2:]
        size = fit_within(h, w, self.min_size[-1], self.max_size)
        return F.interpolate(image[None], size, mode="bilinear", align_corners=False)[0], target

    def postprocess(
        self, result: list[dict[str, Tensor]], sizes: list[tuple[int, int]], own_sizes: list[tuple[int, int]]
    ) -> list[dict[str, Tensor]]:
        if self.training:
            return result
        for found, size, own_size in zip(result, sizes, own_sizes, strict=True):
            found["boxes"] = resize_boxes(found["boxes"], size, own_size)
            if "masks" not in found:
                continue
            chunks = zip(found["masks"].split(PASTED), found["boxes"].split(PASTED), strict=True)
            found["masks"] = torch.cat([paste_masks_in_image(m, b, own_size) >= 0.5 for m, b in chunks])  # (N, 1, H, W)
        return result


class Detector(FasterRCNN):  # type: ignore[misc] # torchvision has no types
    """torchvision's Mask R-CNN, or Faster R-CNN. It resizes images in evaluation; in training they must be resized already.

    Masks are boolean, not probabilities: true where a pixel belongs to the object.

    Args:
        body: A backbone made with timm's `features_only`, four stages.
        num_classes: Number of object classes, without the background.
        short_px: Shorter side of the images in evaluation.
        long_px: Maximum longer side of the images in evaluation.
        config: Its settings; with masks unless they say no.
    """

    def __init__(self, body: nn.Module, num_classes: int, short_px: int, long_px: int, config: DetectorConfig) -> None:
        c, outputs = config.channels, num_classes + 1  # class 0 is the background
        super().__init__(
            Pyramid(body, c),
            rpn_anchor_generator=AnchorGenerator(tuple((px,) for px in config.anchor_px), (ASPECTS,) * 5),
            rpn_head=ProposalHead(c, len(ASPECTS)),
            rpn_pre_nms_top_n_train=config.candidates,
            rpn_pre_nms_top_n_test=max(1, config.candidates // 2),
            rpn_post_nms_top_n_train=config.proposals,
            rpn_post_nms_top_n_test=config.proposals,
            rpn_batch_size_per_image=config.rpn_samples,
            box_roi_pool=MultiScaleRoIAlign(list(LEVELS), 7, 2),
            box_head=TwoMLPHead(c * 7 * 7, config.box_width),
            box_predictor=BoxPredictor(config.box_width, outputs),
            box_score_thresh=config.score,
            box_nms_thresh=config.nms,
            box_detections_per_img=config.detections,
            box_batch_size_per_image=config.box_samples,
        )
        if config.masks != "no":  # as in torchvision's MaskRCNN
            self.roi_heads.mask_roi_pool = MultiScaleRoIAlign(list(LEVELS), 14, 2)
            self.roi_heads.mask_head = MaskRCNNHeads(c, (c,) * config.mask_layers, 1)
            self.roi_heads.mask_predictor = MaskPredictor(c, c, outputs)
        self.transform = Sizes(short_px, long_px, IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
        self.num_classes = num_classes

    @property
    def body(self) -> nn.Module:
        return self.backbone.body.model

    @property
    def has_masks(self) -> bool:
        return self.roi_heads.has_mask()

    def no_weight_decay(self) -> set[str]:
        return no_weight_decay_names(self.body, "backbone.body.model")

    def evaluation_loss(self, image: Tensor, target: dict[str, Tensor]) -> Tensor:
        """The training loss of an image, (3, H, W) from 0 to 1, in evaluation mode: its heads sample regions as in training."""
        images, _ = self.transform([image])
        own, (size,) = image.shape[-2:], images.image_sizes
        resized = {**target, "boxes": resize_boxes(target["boxes"], own, size)}
        if self.has_masks:
            masks = target["masks"][:, None].float()
            masks = F.interpolate(masks, size)[:, 0] if len(masks) else image.new_zeros(0, *size)
            resized["masks"] = masks.to(torch.uint8)
        features = self.backbone(images.tensors)
        try:
            self.rpn.training = self.roi_heads.training = True  # not their parts, and not the backbone
            proposals, losses = self.rpn(images, features, [resized])
            losses |= self.roi_heads(features, proposals, images.image_sizes, [resized])[1]
        finally:
            self.rpn.training = self.roi_heads.training = False
        return torch.stack(list(losses.values())).sum()

    def output_layers(self) -> list[nn.Module]:
        proposals, heads = self.rpn.head, self.roi_heads
        masks = [heads.mask_predictor.mask_fcn_logits] if self.has_masks else []
        return [proposals.cls_logits, proposals.bbox_pred, heads.box_predictor, *masks]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.body.set_grad_checkpointing(enable)  # type: ignore[operator]


def create_detector(
    model: ModelConfig, num_classes: int, short_px: int, long_px: int, config: DetectorConfig
) -> tuple[Detector, WarmStartReport | None]:
    """A detector whose backbone has random weights or those of a classifier's checkpoint."""
    detector = Detector(create_stages(model, "a detector"), num_classes, short_px, long_px, config)
    return detector, start_from(detector, detector.body, model, head="roi_heads.")


def detector_macs(detector: Detector, height: int = 800, width: int = 1280) -> int:
    """Multiply-adds for one image of this size, with 1000 proposals and 100 masks, counted on the meta device.

    Matrix products and convolutions of backbone, pyramid, proposals and heads are counted, as in mmdetection's get_flops.
    """
    shape = copy.deepcopy(detector).to("meta").eval()
    c, heads = shape.backbone.out_channels, shape.roi_heads
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        maps = shape.backbone(torch.empty(1, 3, height, width, device="meta"))
        shape.rpn.head(list(maps.values()))
        heads.box_predictor(heads.box_head(torch.empty(COUNTED_BOXES, c, 7, 7, device="meta")))
        if detector.has_masks:
            heads.mask_predictor(heads.mask_head(torch.empty(COUNTED_MASKS, c, 14, 14, device="meta")))
    return counter.get_total_flops() // 2
