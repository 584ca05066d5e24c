"""Extend images to the grid that a network divides them into."""

import torch.nn.functional as F
from torch import Tensor

__all__ = ["pad_to_multiple"]


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Pad on the right and at the bottom to multiples, by reflection, or by repeating the edge of a thin image."""
    h, w = x.shape[-2:]
    below, right = -h % multiple, -w % multiple
    if below == right == 0:
        return x
    return F.pad(x, (0, right, 0, below), mode="reflect" if below < h and right < w else "replicate")
