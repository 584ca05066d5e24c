"""Extend images to the grid that a network divides them into."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["pad_to_multiple"]


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Pad on the right and at the bottom to multiples, by reflection, or by repeating the edge of a thin image."""
    h, w = x.shape[-2:]
    below, right = -h % multiple, -w % multiple
    if torch.compiler.is_exporting():
        return _reflect(_reflect(x, 2, multiple), 3, multiple)
    if below == right == 0:
        return x
    return F.pad(x, (0, right, 0, below), mode="reflect" if below < h and right < w else "replicate")


def _reflect(x: Tensor, dim: int, multiple: int) -> Tensor:
    """The same for a dimension of a graph with any size, where nothing may depend on whether the size is a multiple."""
    n = x.shape[dim]
    end = n - 1
    index = torch.arange((end + multiple) // multiple * multiple, device=x.device)
    return x.index_select(dim, (end - (index - end).abs()).clamp(min=0))
