"""Responses of a layer that are kept from one call to the next while it does not learn.

Scales change with every step of training, but in evaluation a response depends on nothing but the size of the map. It is kept
with a copy of the few numbers that it was made from, and made again when these differ: after a step of the optimizer,
`load_state_dict`, an edit in place, even through `.data`, which no version counter of PyTorch records.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from .response import Frequencies

__all__ = ["ResponseCache"]

_SIZES: Final = 8  # of maps; a detector sees images of every shape
_VALUES: Final = 1 << 20  # of a term; a larger map takes long beside its response


class ResponseCache:
    """The terms of a layer's response for the last sizes of a map. It is not part of the layer's state, nor of copies of it."""

    def __init__(self) -> None:
        self._terms: OrderedDict[tuple[Any, ...], tuple[Tensor, ...]] = OrderedDict()
        self._origin: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._terms)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ResponseCache":
        return ResponseCache()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return ResponseCache, ()

    def clear(self) -> None:
        self._terms.clear()
        self._origin = []

    def terms(
        self,
        frequencies: Frequencies,
        spacing: float,
        origin: Sequence[Tensor],
        make: Callable[[Frequencies], tuple[Tensor, ...]],
    ) -> tuple[Tensor, ...]:
        """The terms that `make` returns, from frequencies, spacing and the tensors in `origin`, (.., C or 1)."""
        channels = max(v.shape[-1] for v in origin)
        if math.prod(frequencies.sizes) * channels > _VALUES:
            return make(frequencies)
        whole = self._whole(frequencies._replace(columns=slice(None)), spacing, origin, make)
        return whole if frequencies.columns == slice(None) else tuple(t[:, :, frequencies.columns] for t in whole)

    def _whole(
        self,
        frequencies: Frequencies,
        spacing: float,
        origin: Sequence[Tensor],
        make: Callable[[Frequencies], tuple[Tensor, ...]],
    ) -> tuple[Tensor, ...]:
        if not self._is_from(origin):
            self.clear()
            self._origin = [v.clone() for v in origin]
        like = frequencies.like
        key = (frequencies.sizes, frequencies.pieces, like.dtype, like.device, spacing)
        if key in self._terms:
            self._terms.move_to_end(key)
            return self._terms[key]
        self._terms[key] = made = make(frequencies)
        while len(self._terms) > _SIZES:
            self._terms.popitem(last=False)
        return made

    def _is_from(self, origin: Sequence[Tensor]) -> bool:
        return len(origin) == len(self._origin) and all(
            now.dtype == then.dtype and now.device == then.device and torch.equal(now, then)
            for now, then in zip(origin, self._origin, strict=True)
        )
