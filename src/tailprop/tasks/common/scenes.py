"""Data settings of detection and segmentation: images with annotations, or generated scenes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tailprop.data.shapes.render import SceneConfig
from tailprop.engine.settings import setting
from tailprop.runtime.distributed import World, any_rank
from tailprop.tasks.common.task import LoaderConfig
from tailprop.utils.validation import check_at_least

__all__ = ["SceneDataConfig", "ensure_scenes"]


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


def ensure_scenes(data: SceneDataConfig, world: World | None, write: Callable[[Path, SceneConfig, int, int], None]) -> None:
    """Generate the scenes if they do not exist, on rank 0; the other ranks wait."""
    assert data.root is not None  # checked before
    if world is None or world.is_main:
        write(data.root, data.scenes, *data.scene_counts)
    if world is not None:
        any_rank(False, world.device)
