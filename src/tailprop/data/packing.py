"""Many small Python objects kept as one array of bytes."""

import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["Packed"]


class Packed:
    """A sequence of objects that loader processes can share.

    Reading a list or a dict changes reference counts, which makes a forked process copy the pages it reads: COCO's annotations
    would be copied into each of dozens of workers. An array of bytes is only read.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        pieces = [pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL) for item in items]
        self.ends = np.cumsum([0] + [len(piece) for piece in pieces])
        self.bytes = np.frombuffer(b"".join(pieces), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, place: int) -> Any:
        if not 0 <= place < len(self):
            raise IndexError(f"place {place} of {len(self)}")
        return pickle.loads(self.bytes[self.ends[place] : self.ends[place + 1]].data)
