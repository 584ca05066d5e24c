"""Examples of a problem as tensors: settings, training examples, test examples that never change.

Shapes: B batch, H, W; channels first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.loader import KeyedDataset, split_broken
from tailprop.data.samplers import SampleKey
from tailprop.engine.settings import setting
from tailprop.tasks.common.task import LoaderConfig
from tailprop.tasks.reach.photos import Photos, crop_photo, open_photos
from tailprop.tasks.reach.problems import Array, Example, Problem, create_problem
from tailprop.utils.validation import check_at_least, check_between

__all__ = ["Posed", "ReachBatch", "ReachDataConfig", "ReachDataset", "collate_posed", "to_input"]

_TEST_SEED = 20_000  # test examples come from a sequence of their own, the same for every seed of training


@dataclass(frozen=True)
class ReachDataConfig(LoaderConfig):
    """The problem and its examples."""

    problem: Literal["seeds", "key", "path", "color", "fill", "blocks"] = "seeds"
    """seeds: the colour of the nearest seed. key: shapes whose class a far square decides. path: are two ends joined by a
    line. color: colours of a gray photograph from hints. fill: a photograph from a few of its pixels.
    blocks: one with a square missing."""
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
        if self.problem == "key" and self.size_px < 40:
            raise ValueError(f"data.size_px must be at least 40 for the problem key, got {self.size_px}")

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
class Posed:
    """An example and its network input."""

    example: Example
    x: Tensor  # (inputs, H, W)


@dataclass
class ReachBatch:
    x: Tensor  # (B, inputs, H, W)
    target: Tensor  # labels (B, H, W), or values (B, outputs, H, W)
    examples: list[Example]
    broken: list[Broken] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.x)

    def pin_memory(self) -> "ReachBatch":  # called by the loader
        return ReachBatch(self.x.pin_memory(), self.target.pin_memory(), self.examples, self.broken)


class ReachDataset(KeyedDataset):
    """Training examples from the key's seed, or test examples from their index."""

    def __init__(self, data: ReachDataConfig, split: Literal["train", "test"]) -> None:
        self.data, self.training = data, split == "train"
        self.problem, self.photos = data.create_problem(), data.open_photos(split)
        self.replace_broken = self.training
        wanted = data.train_examples if self.training else data.test_examples
        if self.photos is not None:
            wanted = len(self.photos) if self.training else min(wanted, len(self.photos))
        self.count = wanted

    def __len__(self) -> int:
        return self.count

    def fingerprint(self) -> str:
        """Of photographs their names and sizes; generated examples are a function of the settings."""
        return "generated" if self.photos is None else self.photos.fingerprint()

    def read_example(self, index: int, key: SampleKey) -> Posed | Broken:
        rng = np.random.default_rng(key.seed if self.training else [_TEST_SEED, index])
        photo = None
        if self.photos is not None:
            read = self.photos.read(index)
            if isinstance(read, Broken):
                return read
            photo = crop_photo(read, self.data.size_px, rng if self.training else None)
        example = self.problem.make(rng, self.data.size_px, photo)
        return Posed(example, to_input(self.problem, example.picture))


def to_input(problem: Problem, picture: Array) -> Tensor:
    """A picture as the input of a network, (inputs, H, W)."""
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(problem.encode(picture), -1, 0)))


def collate_posed(found: Sequence[list[Posed | Broken]]) -> ReachBatch:
    posed, broken = split_broken(found)
    if not posed:
        return ReachBatch(torch.empty(0), torch.empty(0), [], broken)
    targets = [torch.from_numpy(np.ascontiguousarray(p.example.target)) for p in posed]
    if targets[0].ndim == 3:
        targets = [target.permute(2, 0, 1) for target in targets]
    return ReachBatch(torch.stack([p.x for p in posed]), torch.stack(targets), [p.example for p in posed], broken)
