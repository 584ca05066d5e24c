"""Predict a class for every pixel of an image of any size: on the whole image, or in windows whose logits are averaged.

Shapes: K classes; H, W size of the image; h, w size of a view, the resized and possibly flipped image that the model runs on.
"""

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from tailprop.backbone.model import MIN_SIZE_PX
from tailprop.data.resize import fit_within
from tailprop.tasks.common.models import check_finite
from tailprop.tasks.segment.config import InferenceConfig
from tailprop.tasks.segment.data import normalise, resize_image
from tailprop.tasks.segment.model import enlarge
from tailprop.tasks.segment.windows import windows

__all__ = ["label_image", "slide"]

Model = Callable[[Tensor], Tensor]  # (1, 3, h, w) -> (1, K, h, w)
CLASSES_AT_ONCE: Final = 16  # resized to the image size together: 150 classes of a 12-megapixel image would take 7 GB


def slide(model: Model, image: Tensor, window: int, stride: int) -> Tensor:
    """The mean logits of all windows that contain a pixel. (1, 3, h, w) -> (1, K, h, w)"""
    h, w = image.shape[-2:]
    total: Tensor | None = None
    count = image.new_zeros(h, w, dtype=torch.float32)
    for top, bottom in windows(h, window, stride):
        for left, right in windows(w, window, stride):
            logits = model(image[..., top:bottom, left:right]).float()
            if total is None:
                total = logits.new_zeros(1, logits.shape[1], h, w)
            total[..., top:bottom, left:right] += logits
            count[top:bottom, left:right] += 1
    assert total is not None  # there is at least one window
    return total / count


@torch.inference_mode()
def label_image(
    model: Model,
    image: Tensor,
    config: InferenceConfig,
    short_px: int,
    long_px: int,
    on_logits: Callable[[Tensor], object] = lambda _logits: None,
) -> Tensor:
    """Predict the class of every pixel: (3, H, W), uint8 -> (H, W).

    Args:
        model: Maps images to logits; a module must be in evaluation mode.
        short_px: Shorter side the image is resized to.
        long_px: Maximum longer side.
        on_logits: Called with the logits of the first view, (1, K, h, w).
    """
    h, w = image.shape[-2:]
    views = []
    for scale in config.scales:
        size = fit_within(h, w, scale * short_px, scale * long_px)
        view = normalise(resize_image(image[None].float(), size))
        views.append(_logits(model, view, config))
        if config.flip:
            views.append(_logits(model, view.flip(-1), config).flip(-1))
    on_logits(views[0])
    return most_probable(views, (h, w))


def _logits(model: Model, view: Tensor, config: InferenceConfig) -> Tensor:
    h, w = view.shape[-2:]
    view = torch.nn.functional.pad(view, (0, max(0, MIN_SIZE_PX - w), 0, max(0, MIN_SIZE_PX - h)))  # thin images
    logits = model(view).float() if config.mode == "whole" else slide(model, view, config.window_px, config.stride_px)
    return logits[..., :h, :w]


def most_probable(views: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """The class with the highest mean probability over views whose logits, (1, K, h, w), are first resized to `size`.

    Only a few classes are resized at a time, so that the resized logits of all classes are never in memory at once.
    """
    for view in views:
        check_finite(view)
    norms = [_log_sum(view, size) for view in views] if len(views) > 1 else [None]  # a single view needs no softmax
    best: Tensor | None = None
    for first in range(0, views[0].shape[1], CLASSES_AT_ONCE):
        scores = _scores(views[0], norms[0], first, size)
        for view, norm in zip(views[1:], norms[1:], strict=True):
            scores += _scores(view, norm, first, size)  # one view at a time, to save memory
        score, found = scores.max(1)
        found = found + first
        if best is None:
            best, labels = score, found
        else:
            labels = torch.where(score > best, found, labels)
            best = torch.maximum(score, best)
    return labels[0]


def _scores(view: Tensor, norm: Tensor | None, first: int, size: tuple[int, int]) -> Tensor:
    logits = enlarge(view[:, first : first + CLASSES_AT_ONCE], size)
    return logits if norm is None else (logits - norm).exp()  # probabilities


def _log_sum(view: Tensor, size: tuple[int, int]) -> Tensor:
    """The logarithm of softmax's denominator at every pixel, (1, 1, H, W)."""
    parts = [enlarge(part, size).logsumexp(1, keepdim=True) for part in view.split(CLASSES_AT_ONCE, dim=1)]
    return torch.cat(parts, dim=1).logsumexp(1, keepdim=True)
