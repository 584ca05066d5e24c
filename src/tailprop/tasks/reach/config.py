"""Settings of the problems that need reach.

Nothing here imports PyTorch before the settings are checked: --help and wrong options need none.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tailprop.engine.config import ModelConfig, TaskConfig
from tailprop.engine.settings import setting
from tailprop.tasks.common.config import LoaderConfig
from tailprop.tasks.reach.photos import Photos, open_photos
from tailprop.tasks.reach.problems import Problem, create_problem
from tailprop.utils.validation import check_at_least, check_between

__all__ = ["ReachConfig", "ReachDataConfig", "ReachModelConfig"]


@dataclass(frozen=True)
class ReachDataConfig(LoaderConfig):
    """The problem and its examples."""

    problem: Literal["seeds", "key", "keys", "path", "color", "fill", "blocks"] = "seeds"
    """seeds: the colour of the nearest seed. key: shapes whose class a far square decides. keys: the nearer of two
    squares decides. path: are two ends joined by a line. color: colours of a gray photograph from hints. fill: a photograph
    from a few of its pixels. blocks: one with a square missing."""
    size_px: int = 32
    """Side of the pictures."""
    share: float = 0.03
    """Share of the pixels that are known (fill) or have their colour (color)."""
    block_px: int = 32
    """Side of the missing square (blocks)."""
    train: Path | None = setting(None, local=True)
    """Training photographs (color, fill, blocks): a folder, searched recursively, or one with Parquet shards."""
    test: Path | None = setting(None, local=True)
    """Test photographs, likewise."""
    train_examples: int = 100_000
    """Generated training examples; those of photographs are as many as there are photographs."""
    test_examples: int = 512
    """Test examples; of photographs at most as many as there are."""

    def check(self) -> None:
        super().check()
        check_between("data.size_px", self.size_px, 16, 1024)
        check_between("data.share", self.share, 0, 1)
        check_at_least("data.block_px", self.block_px, 1)
        check_at_least("data.train_examples", self.train_examples, 1)
        check_at_least("data.test_examples", self.test_examples, 1)
        least = {"key": 40, "keys": 64}.get(self.problem, 0)
        if self.size_px < least:
            raise ValueError(f"data.size_px must be at least {least} for the problem {self.problem}, got {self.size_px}")

    def create_problem(self) -> Problem:
        return create_problem(self.problem, self.share, self.block_px)

    def open_photos(self, split: Literal["train", "test"]) -> Photos | None:
        """The photographs of a split; None for a problem without."""
        if not self.create_problem().uses_photos:
            return None
        folder = getattr(self, split)
        if folder is None:
            raise ValueError(f"the problem {self.problem} needs photographs; set their folder with --data.{split}")
        return open_photos(folder, {"train": "train", "test": "validation"}[split])


@dataclass(frozen=True)
class ReachModelConfig(ModelConfig):
    """The network; `args` holds its mixer, width and depth."""

    name: str = "reach_net"
    """reach_net: layers at one resolution. Its arguments: mixer, mixer_args, dim, depth, patch_px."""
    in_chans: int = 0
    """Number of input channels; 0 = as the problem needs."""


@dataclass(frozen=True)
class ReachConfig(TaskConfig):
    """Train a network on a problem that needs reach."""

    task: Literal["reach"] = "reach"
    """Task to train."""
    model: ReachModelConfig = setting(factory=ReachModelConfig)
    data: ReachDataConfig = setting(factory=ReachDataConfig)

    def check(self) -> None:
        super().check()
        if self.model.name != "reach_net":
            raise ValueError(f"model.name must be reach_net for this task, got {self.model.name!r}")
        self.data.check()
        inputs = self.data.create_problem().inputs
        if self.model.in_chans not in (0, inputs):
            raise ValueError(f"model.in_chans must be {inputs} for the problem {self.data.problem}, got {self.model.in_chans}")
