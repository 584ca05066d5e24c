"""Training's crop where nothing else is done to a picture: timm's, pixel for pixel, by a shorter way.

Around the crop of a small picture timm's and torchvision's steps spend more time on checks of types and sizes, for every
picture anew, than on the picture. On a CPU that is time the model does not get.
"""

import random

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
        interpolation: As timm spells it.
    """

    def __init__(
        self, side: int, scale: tuple[float, float], ratio: tuple[float, float], flip: float, interpolation: str
    ) -> None:
        self.side, self.scale, self.ratio, self.flip = side, scale, ratio, flip
        self.resampling = str_to_pil_interp(interpolation)

    def part(self, picture: Image.Image) -> tuple[int, int, int, int]:
        """Left, upper, right and lower edge, drawn from Python's generator."""
        top, left, height, width = RandomResizedCropAndInterpolation.get_params(picture, self.scale, self.ratio)
        return left, top, left + width, top + height

    def __call__(self, picture: Image.Image) -> Tensor:
        square = picture.crop(self.part(picture)).resize((self.side, self.side), self.resampling)
        if random.random() < self.flip:
            square = square.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(square))  # (side, side) or (side, side, C)
        return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()
