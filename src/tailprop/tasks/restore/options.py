"""Options of the commands for restorers.

Nothing here imports PyTorch before the options are checked: --help and wrong options need none.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from tailprop.data.raster import Pixels
from tailprop.engine.settings import setting
from tailprop.tasks.common.options import EvalOptions, PredictOptions, override
from tailprop.tasks.restore.config import RestoreDataConfig
from tailprop.tasks.restore.tiles import check_tiles, shared_px
from tailprop.utils.validation import check_at_least, check_choice, check_output_folder

__all__ = ["TILE_PX", "BenchRestore", "RestoreDataChoice", "RestoreEval", "RestorePredict"]


@dataclass(frozen=True)
class RestoreDataChoice:
    """Test images or a degradation other than the run's; settings that are not given stay as in the run."""

    test: Path | None = None
    """Folder of clean test images."""
    test_degraded: Path | None = None
    """For pairs: the folder of degraded test images."""
    degradation: Literal["noise", "jpeg", "downscale", "pairs"] | None = setting(None, aliases=("damage",))
    """Gaussian noise, JPEG compression, bicubic downscaling, or pairs of given images."""
    sigma: float | None = None
    """Standard deviation of the noise, where white is 255."""
    quality: int | None = None
    """Quality of the JPEG encoder."""
    on_broken: Literal["skip", "stop"] | None = None
    """For a corrupt image: skip and count it, or stop."""

    def over(self, data: RestoreDataConfig) -> RestoreDataConfig:
        """The run's settings with these; its ranges are for training."""
        return override(data, self, sigma_range=None, quality_range=None)


@dataclass(frozen=True)
class RestoreEval(EvalOptions):
    """Evaluate a restoration network."""

    data: RestoreDataChoice = field(default_factory=RestoreDataChoice)
    tile_px: int | None = None
    """Side of the tiles to restore in; none = whole images, as in the protocol."""
    overlap_px: int | None = None
    """Overlap of neighbouring tiles, at most half a tile; none = 32, or a quarter of a small tile."""
    images: Path | None = setting(None, aliases=("pictures",))
    """Folder for figures: the degraded, restored and clean image side by side, with PSNR."""
    overwrite: bool = False
    """Overwrite figures in that folder."""

    def check(self) -> None:
        super().check()
        check_tiles(self.tile_px, self.overlap_px)
        if self.images is not None:
            check_output_folder("--images", self.images)

    @property
    def shared_px(self) -> int:
        return shared_px(self.tile_px, self.overlap_px, 32)


TILE_PX: Final = 512


@dataclass(frozen=True)
class RestorePredict(PredictOptions):
    """Restore images."""

    out: Path = Path("restored")
    """Folder for the restored images, as PNG."""
    whole_px: int = 1 << 20
    """Images of up to this many pixels are restored whole, larger ones in tiles; 0 = always in tiles."""
    tile_px: int = TILE_PX
    """Side of the tiles."""
    overlap_px: int | None = None
    """Overlap of neighbouring tiles, at most half a tile; none = 64, or a quarter of a small tile."""

    def check(self) -> None:
        check_at_least("whole_px", self.whole_px, 0)
        check_tiles(self.tile_px, self.overlap_px)
        super().check()

    def tile_for(self, pixels: Pixels) -> int | None:
        """The tile size for an image; None = restore it whole."""
        h, w = pixels.shape[:2]
        return None if h * w <= self.whole_px or max(h, w) <= self.tile_px else self.tile_px


@dataclass(frozen=True)
class BenchRestore:
    """Time and memory per restored pixel, by image size."""

    models: tuple[str, ...] = ("tailprop_ir_light", "swinir_light", "dncnn")
    """Restoration networks."""
    sides_px: tuple[int, ...] = (128, 256, 512, 1024)
    """Sides of the square images."""
    rounds: int = 3
    """Rounds after one warm-up round; the best counts."""
    dim: int | None = None
    """Channels of the body; none = as in the network."""
    layers: int | None = None
    """Number of layers, in a single group; none = as in the network. The cost per pixel is that of the layers."""
    out: Path | None = None
    """CSV to write."""

    def check(self) -> None:
        from tailprop.tasks.restore.model import RESTORERS

        for name in self.models:
            check_choice("restoration model", name, tuple(RESTORERS))
        check_at_least("rounds", self.rounds, 1)
        for side in self.sides_px:
            check_at_least("sides_px", side, 16)
