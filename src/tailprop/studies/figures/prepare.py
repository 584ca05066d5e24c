"""Images as a trained network gets them: cropped and normalized, posed as a problem, or degraded as in its run.

Tasks are imported when they are drawn: each has packages of its own, which the demo does without.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from tailprop.tasks.common.predictor import to_pil, to_tensor

__all__ = ["Prepare", "preparation"]

Prepare = Callable[[Image.Image, int], tuple[Tensor, Image.Image]]  # image, number -> input (C, H, W), what is shown of it


def preparation(predictor: Any) -> Callable[[int], Prepare]:
    """For every image size, what the task of a predictor does to an image."""
    task = predictor.settings.task
    if task == "classify":
        return lambda size: _transformed(predictor, size)
    if task == "reach":
        return lambda size: _posed(predictor.problem, size)
    if task == "restore":
        return lambda size: _degraded(predictor.settings, size)
    return _normalized


def _transformed(predictor: Any, size: int) -> Prepare:
    data = predictor.settings.data
    transform = predictor.transform(data if size == data.size_px else data.at_size(size))
    return lambda image, _number: (transform(to_pil(image, predictor.mode)), _square(image, size))


def _posed(problem: Any, size: int) -> Prepare:
    from tailprop.tasks.reach.data import to_input
    from tailprop.tasks.reach.photos import crop_photo

    def prepare(image: Image.Image, number: int) -> tuple[Tensor, Image.Image]:
        rng = np.random.default_rng([1, number])
        picture = problem.make(rng, size, crop_photo(image, size, None)).picture
        return to_input(problem, picture), Image.fromarray(picture)

    return prepare


def _degraded(settings: Any, size: int) -> Prepare:
    """Noise or compression of the run; the degraded image is shown."""
    from tailprop.tasks.restore.data import degrade

    gray = settings.model.in_chans == 1

    def prepare(image: Image.Image, _number: int) -> tuple[Tensor, Image.Image]:
        clean = np.array(_square(image.convert("L" if gray else "RGB"), size))
        degraded = degrade(clean[..., None] if gray else clean, settings.data)  # (H, W, C), float32
        shown = (255 * degraded.clip(0, 1)).round().astype(np.uint8)
        tensor = torch.from_numpy(np.ascontiguousarray(np.moveaxis(degraded, -1, 0)))
        return tensor, Image.fromarray(shown[..., 0] if gray else shown)

    return prepare


def _normalized(size: int) -> Prepare:
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD))

    def prepare(image: Image.Image, _number: int) -> tuple[Tensor, Image.Image]:
        shown = _square(image.convert("RGB"), size)
        return (to_tensor(shown).float() / 255 - mean) / std, shown

    return prepare


def _square(image: Image.Image, size: int) -> Image.Image:
    """The central square of an image."""
    side = min(image.size)
    left, top = ((length - side) // 2 for length in image.size)
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)
