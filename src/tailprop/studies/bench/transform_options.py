"""Options of `tailprop bench transform`, which are parsed without PyTorch."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tailprop.utils.validation import check_at_least

__all__ = ["TransformBench"]


@dataclass(frozen=True)
class TransformBench:
    """Time of the operator by the length of an axis and by the size of a map, for every way to transform it."""

    lengths: tuple[int, ...] = (
        *(7, 14, 28, 49, 56, 64, 97, 112, 167, 168, 200, 224, 256, 288, 320, 331, 334, 384, 448, 512, 521, 1021, 1024),
    )
    """Lengths of an axis, measured one axis at a time; the rule is fitted to these."""
    maps: tuple[str, ...] = (
        *(
            "56x56",
            "100x168",
            "112x112",
            "200x334",
            "224x224",
            "256x256",
            "288x288",
            "320x320",
            "384x384",
            "448x448",
            "512x512",
        ),
        "1024x1024",
    )
    """Maps, HEIGHTxWIDTH, measured as the rule transforms them and as plain products."""
    modes: tuple[Literal["infer", "train"], ...] = ("infer", "train")
    """Without gradients, or forward and backward."""
    channels: int = 96
    """Channels."""
    positions: int = 32768
    """Positions of a map of one axis: its rows are as many as fit."""
    rounds: int = 8
    """Rounds after one warm-up round."""
    threads: int = os.cpu_count() or 1
    """CPU threads."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device: cpu or cuda."""
    out: Path | None = None
    """CSV file for the results; the figure is written beside it."""

    def check(self) -> None:
        for name, least in (("channels", 1), ("positions", 1), ("rounds", 1), ("threads", 1)):
            check_at_least(name, getattr(self, name), least)
        if not self.modes or not (self.lengths or self.maps):
            raise ValueError("nothing to measure; give at least one mode, and a length or a map")
        for length in self.lengths:
            check_at_least("each of lengths", length, 2)
        for size in self.maps:
            self.sides(size)

    @staticmethod
    def sides(size: str) -> tuple[int, int]:
        """Height and width of "HEIGHTxWIDTH"."""
        height, _, width = size.partition("x")
        if not (height.isdecimal() and width.isdecimal() and int(height) > 1 and int(width) > 1):
            raise ValueError(f"{size!r} is not a size of a map; write HEIGHTxWIDTH, for example 200x334")
        return int(height), int(width)
