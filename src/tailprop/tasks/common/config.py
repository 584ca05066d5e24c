"""Settings that the tasks share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tailprop.data.shapes.render import SceneConfig
from tailprop.engine.settings import setting
from tailprop.utils.validation import check_at_least, check_between

__all__ = ["LEAST_PX", "LoaderConfig", "SceneDataConfig"]

LEAST_PX: Final = 32  # side of an image: backbone.model.MIN_SIZE_PX, which is not imported because it imports PyTorch
_MOST_WORKERS: Final = 1024  # more is a mistake, though only one per core is started


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Settings of the data loader."""

    on_broken: Literal["skip", "stop"] = setting("stop", free=True)
    """If a file is missing, corrupt or invalid: skip and count it, or stop."""
    workers: int = setting(2, local=True)
    """Loader processes per training process, at most one per core."""

    def check(self) -> None:
        check_between("data.workers", self.workers, 0, _MOST_WORKERS)


@dataclass(frozen=True, kw_only=True)
class SceneDataConfig(LoaderConfig):
    """Data settings that detection and segmentation share."""

    root: Path | None = setting(None, local=True)
    """Folder of the dataset; the paths below are relative to it."""
    scenes: SceneConfig = setting(factory=SceneConfig)
    """Settings of generated scenes."""
    scene_counts: tuple[int, int] = (2000, 200)
    """Number of generated scenes for training and for validation."""
    limit: int | None = None
    """Use only the first N training images; none = all."""
    short_px: int
    """Images are resized to this shorter side."""
    long_px: int
    """Maximum of the longer side."""

    def check(self) -> None:
        super().check()
        check_at_least("data.short_px", self.short_px, 32)
        check_at_least("data.long_px", self.long_px, self.short_px)
        for count in self.scene_counts:
            check_at_least("data.scene_counts", count, 1)
        if self.limit is not None:
            check_at_least("data.limit", self.limit, 1)
        self.scenes.check()
        if self.root is None:
            raise ValueError("--data.root is missing; give the folder with the images and their annotations")
