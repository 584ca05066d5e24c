"""Options of `tailprop bench`, which are parsed without PyTorch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tailprop.engine.settings import setting
from tailprop.utils.validation import check_at_least

__all__ = ["Bench"]


@dataclass(frozen=True)
class Bench:
    """Images per second of several models, measured in interleaved rounds."""

    models: tuple[str, ...] = ("tailprop_tiny", "convnext_tiny", "swin_tiny_patch4_window7_224", "vheat_tiny")
    """timm model names; the others are compared with the first."""
    vheat_code: Path | None = None
    """Path of vHeat's published classification/models/vHeat.py, to include it."""
    modes: tuple[Literal["infer", "train"], ...] = ("infer", "train")
    """Forward passes without gradients, training steps (forward, backward, AdamW), or both."""
    batch_size: int = setting(8, aliases=("batch",))
    """Images per batch."""
    size_px: int = 224
    """Image size."""
    rounds: int = 12
    """Rounds after one warm-up round."""
    threads: int = 2
    """CPU threads."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device: cpu or cuda."""
    out: Path | None = None
    """CSV file for the results."""

    def check(self) -> None:
        from tailprop.tasks.common.bench import check_bench

        for name, least in (("batch_size", 1), ("rounds", 1), ("threads", 1), ("size_px", 32)):
            check_at_least(name, getattr(self, name), least)
        if not self.modes:
            raise ValueError("no modes given; give at least one")
        check_bench(self.models, self.device)
