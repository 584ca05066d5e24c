"""Settings of restoration.

Nothing here imports PyTorch before the settings are checked: --help and wrong options need none.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tailprop.data.images import list_images
from tailprop.engine.config import ModelConfig, TaskConfig
from tailprop.engine.settings import setting
from tailprop.tasks.common.config import LoaderConfig
from tailprop.utils.validation import check_at_least, check_between, check_choice

__all__ = ["RestoreConfig", "RestoreDataConfig", "RestorerConfig"]


@dataclass(frozen=True)
class RestoreDataConfig(LoaderConfig):
    """Clean images, and how they are degraded."""

    train: tuple[Path, ...] = setting((), local=True)
    """Folders of clean training images, searched recursively."""
    test: Path | None = setting(None, local=True)
    """Folder of clean test images."""
    degradation: Literal["noise", "jpeg"] = setting("noise", aliases=("damage",))
    """Gaussian noise, or JPEG compression."""
    sigma: float = 15.0
    """Standard deviation of the noise, where white is 255."""
    quality: int = 40
    """Quality of the JPEG encoder, 1 to 100."""
    crop_px: int = 128
    """Side of the training crops."""
    cache_gb: float = setting(1.0, local=True, aliases=("cache",))
    """Cache of decoded training images in each loader process, in GB."""

    def check(self) -> None:
        super().check()
        check_at_least("data.crop_px", self.crop_px, 8)
        check_between("data.sigma", self.sigma, 0, 255)
        check_between("data.quality", self.quality, 1, 100)
        check_at_least("data.cache_gb", self.cache_gb, 0)

    def list_test_images(self) -> list[Path]:
        if self.test is None:
            raise ValueError("no test images; set their folder with --data.test")
        return list_images([str(self.test)])

    def list_train_images(self) -> list[Path]:
        if not self.train:
            raise ValueError("no training images; set their folders with --data.train")
        return list_images([str(folder) for folder in self.train])


@dataclass(frozen=True)
class RestorerConfig(ModelConfig):
    """The network."""

    name: str = "tailprop_ir"
    """tailprop_ir, vheat_ir, waveformer_ir, swinir, identity_ir, each also with the suffix _light; or dncnn."""
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
        check_at_least("loss_eps", self.loss_eps, 0)
        self.data.check()
