"""Examples of a problem as tensors: settings, training examples, test examples that never change.

Shapes: B batch, H, W; channels first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.loader import KeyedDataset, split_broken
from tailprop.data.samplers import SampleKey
from tailprop.tasks.reach.config import ReachDataConfig
from tailprop.tasks.reach.photos import crop_photo
from tailprop.tasks.reach.problems import Array, Example, Problem

__all__ = ["Posed", "ReachBatch", "ReachDataset", "collate_posed", "to_input"]

_TEST_SEED = 20_000  # test examples come from a sequence of their own, the same for every seed of training


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
