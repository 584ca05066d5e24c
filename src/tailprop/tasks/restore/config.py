"""Settings of restoration.

Nothing here imports PyTorch before the settings are checked: --help and wrong options need none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import tyro

from tailprop.data.images import list_images
from tailprop.engine.config import ModelConfig, TaskConfig
from tailprop.engine.settings import setting
from tailprop.tasks.common.config import LoaderConfig
from tailprop.tasks.restore.degrade import Degradation
from tailprop.tasks.restore.partners import find_partners
from tailprop.utils.validation import check_at_least, check_between, check_choice

if TYPE_CHECKING:
    from tailprop.tasks.restore.metrics import Protocol

__all__ = ["RestoreConfig", "RestoreDataConfig", "RestorerConfig"]


_RANGES: Final = {"sigma_range": ("noise", 0, 255), "quality_range": ("jpeg", 1, 100)}  # of which degradation, and their limits


@dataclass(frozen=True)
class RestoreDataConfig(LoaderConfig):
    """Clean images, and how they are degraded."""

    train: tuple[Path, ...] = setting((), local=True)
    """Folders of clean training images, searched recursively."""
    test: Path | None = setting(None, local=True)
    """Folder of clean test images."""
    train_degraded: tuple[Path, ...] = setting((), local=True)
    """For pairs: a folder of degraded images for each folder of data.train, with files of the same names."""
    test_degraded: Path | None = setting(None, local=True)
    """For pairs: the folder of degraded test images."""
    degradation: Literal["noise", "jpeg", "downscale", "pairs"] = setting("noise", aliases=("damage",))
    """Gaussian noise, JPEG compression, bicubic downscaling (super-resolution), or pairs of given images."""
    sigma: float = 15.0
    """Standard deviation of the noise, where white is 255."""
    sigma_range: tuple[float, float] | None = setting(None, late=True)
    """Blind training: sigma is drawn from this range for every crop, and data.sigma is for evaluation; none = data.sigma."""
    quality: int = 40
    """Quality of the JPEG encoder, 1 to 100."""
    quality_range: tuple[int, int] | None = setting(None, late=True)
    """Blind training: quality is drawn from this range for every crop, and data.quality is for evaluation; none =
    data.quality."""
    scale: int = setting(1, late=True)
    """Super-resolution: how many times larger the network's output is, 2 to 4; for pairs also 1."""
    gray_share: float = setting(0.0, late=True)
    """Share of the training crops that a colour network sees in gray, so that it can also restore gray images."""
    crop_px: int = 128
    """Side of the training crops of clean images."""
    cache_gb: float = setting(1.0, local=True, aliases=("cache",))
    """Cache of decoded training images in each loader process, in GB."""

    def check(self) -> None:
        super().check()
        check_at_least("data.crop_px", self.crop_px, 8)
        check_between("data.sigma", self.sigma, 0, 255)
        check_between("data.quality", self.quality, 1, 100)
        check_between("data.gray_share", self.gray_share, 0, 1)
        check_at_least("data.cache_gb", self.cache_gb, 0)
        self._check_ranges()
        self._check_scale()

    def _check_ranges(self) -> None:
        for name, (degradation, least, most) in _RANGES.items():
            if (given := getattr(self, name)) is None:
                continue
            if self.degradation != degradation:
                raise ValueError(f"data.{name} is for data.degradation {degradation}, not {self.degradation}; leave it out")
            if not least <= given[0] <= given[1] <= most:
                raise ValueError(f"data.{name} must be a minimum and a maximum from {least} to {most}, got {given}")

    def _check_scale(self) -> None:
        scales = {"downscale": (2, 3, 4), "pairs": (1, 2, 3, 4)}.get(self.degradation, (1,))
        if self.scale not in scales:
            allowed = ", ".join(map(str, scales))
            raise ValueError(f"data.scale must be {allowed} for data.degradation {self.degradation}, got {self.scale}")
        if self.crop_px % self.scale:
            raise ValueError(f"data.crop_px must be a multiple of data.scale {self.scale}, got {self.crop_px}")

    @property
    def how(self) -> Degradation:
        """The degradation of training crops."""
        sigma, quality = self.sigma_range or (self.sigma, self.sigma), self.quality_range or (self.quality, self.quality)
        return Degradation(self.degradation, sigma, quality, self.scale)

    @property
    def how_tested(self) -> Degradation:
        return Degradation(self.degradation, (self.sigma, self.sigma), (self.quality, self.quality), self.scale)

    @property
    def protocol(self) -> "Protocol":
        """How test images are compared: for super-resolution on luma, without a border as wide as the scale."""
        from tailprop.tasks.restore.metrics import Protocol

        return Protocol(border_px=self.scale if self.scale > 1 else 0, on_luma=self.scale > 1)

    @property
    def before(self) -> str:
        """What the restored image is compared with."""
        return "degraded" if self.scale == 1 else "bicubic"

    def list_test_images(self) -> list[Path]:
        if self.test is None:
            raise ValueError("no test images; set their folder with --data.test")
        return list_images([str(self.test)])

    def list_train_images(self) -> list[Path]:
        if not self.train:
            raise ValueError("no training images; set their folders with --data.train")
        return list_images([str(folder) for folder in self.train])

    def train_partners(self, paths: Sequence[Path]) -> dict[Path, Path]:
        """The degraded image of each clean training image; empty if they are made on the fly."""
        if self.degradation != "pairs":
            return {}
        if len(self.train_degraded) != len(self.train):
            raise ValueError(
                f"pairs need a folder of degraded images for each of {len(self.train)} in --data.train; --data.train-degraded "
                f"has {len(self.train_degraded)}"
            )
        return find_partners(paths, dict(zip(self.train, self.train_degraded, strict=True)), self.scale)

    def test_partners(self, paths: Sequence[Path]) -> dict[Path, Path]:
        if self.degradation != "pairs":
            return {}
        if self.test is None or self.test_degraded is None:
            raise ValueError("pairs need a folder of degraded test images; set it with --data.test-degraded")
        return find_partners(paths, {self.test: self.test_degraded}, self.scale)


@dataclass(frozen=True)
class RestorerConfig(ModelConfig):
    """The network."""

    name: str = "tailprop_ir"
    """tailprop_ir, vheat_ir, waveformer_ir, swinir, identity_ir, each also with the suffix _light; tailprop_unet; or dncnn."""
    in_chans: int = 1
    """1 for gray images, 3 for colour."""


@dataclass(frozen=True)
class RestoreConfig(TaskConfig):
    """Train a network that restores images."""

    task: Literal["restore"] = "restore"
    """Task to train."""
    paper_psnr: Annotated[dict[str, float], tyro.conf.Suppress] = setting(factory=dict)
    """The paper's PSNR for networks of this recipe, printed next to ours."""
    paper_set: str = ""
    """The test set of the paper's PSNR."""
    loss_eps: float = 1e-3
    """Epsilon of the Charbonnier loss: smaller errors count quadratically, where white is 1."""
    model: RestorerConfig = setting(factory=RestorerConfig)
    data: RestoreDataConfig = setting(factory=RestoreDataConfig)

    def check(self) -> None:
        from tailprop.tasks.restore.model import RESTORERS

        super().check()
        check_choice("restoration model", self.model.name, tuple(RESTORERS))
        if self.model.in_chans not in (1, 3):
            raise ValueError(f"model.in_chans must be 1 (gray) or 3 (colour), got {self.model.in_chans}")
        if self.data.gray_share and self.model.in_chans == 1:
            raise ValueError("data.gray_share is for colour networks, whose model.in_chans is 3; leave it out")
        check_at_least("loss_eps", self.loss_eps, 0)
        self.data.check()
