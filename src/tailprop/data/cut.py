"""Training's crop, and what a policy of augmentation makes of it: timm's, pixel for pixel, by a shorter way.

Around the crop of a small picture timm's and torchvision's steps spend more time on checks of types and sizes, for every
picture anew, than on the picture. On a CPU that is time the model does not get.
"""

import random
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from timm.data.transforms import RandomResizedCropAndInterpolation, str_to_pil_interp
from torch import Tensor

__all__ = ["RandomCut"]


class RandomCut:
    """A random part of a picture, resized to a square and mirrored by chance; bytes, (C, side, side).

    Args:
        side: Of the square, in pixels.
        scale: Area of the part over that of the picture, from and to.
        ratio: Width over height of the part, from and to.
        flip: Chance of a mirror image.
        interpolation: As timm spells it; random = bilinear or bicubic, by chance.
        policy: What else is done to the square, such as RandAugment.
    """

    def __init__(
        self,
        side: int,
        scale: tuple[float, float],
        ratio: tuple[float, float],
        flip: float,
        interpolation: str,
        policy: Callable[[Image.Image], Image.Image] | None = None,
    ) -> None:
        self.side, self.scale, self.ratio, self.flip, self.policy = side, scale, ratio, flip, policy
        names = ("bilinear", "bicubic") if interpolation == "random" else (interpolation,)
        self.resamplings = [str_to_pil_interp(name) for name in names]

    def part(self, picture: Image.Image) -> tuple[int, int, int, int]:
        """Left, upper, right and lower edge, drawn from Python's generator."""
        top, left, height, width = RandomResizedCropAndInterpolation.get_params(picture, self.scale, self.ratio)
        return left, top, left + width, top + height

    def __call__(self, picture: Image.Image) -> Tensor:
        part = picture.crop(self.part(picture))
        resampling = self.resamplings[0] if len(self.resamplings) == 1 else random.choice(self.resamplings)
        square = part.resize((self.side, self.side), resampling)
        if random.random() < self.flip:
            square = square.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.policy is not None:
            square = self.policy(square)
        pixels = torch.from_numpy(np.array(square))  # (side, side) or (side, side, C)
        return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()
