"""Data settings of detection and segmentation: images with annotations, or generated scenes."""

from collections.abc import Callable
from pathlib import Path

from tailprop.data.shapes.render import SceneConfig
from tailprop.runtime.distributed import World, any_rank
from tailprop.tasks.common.config import SceneDataConfig

__all__ = ["ensure_scenes"]


def ensure_scenes(data: SceneDataConfig, world: World | None, write: Callable[[Path, SceneConfig, int, int], None]) -> None:
    """Generate the scenes if they do not exist, on rank 0; the other ranks wait."""
    assert data.root is not None  # checked before
    if world is None or world.is_main:
        write(data.root, data.scenes, *data.scene_counts)
    if world is not None:
        any_rank(False, world.device)
