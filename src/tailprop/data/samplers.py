"""The order of examples, a function of seed and epoch."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.utils.data import Sampler

from tailprop.runtime.distributed import World
from tailprop.runtime.rng import mix_seeds

__all__ = ["EvalSampler", "SampleKey", "TrainSampler"]


@dataclass(frozen=True)
class SampleKey:
    """The key of an example: its index, the seed of its augmentation, and the training progress (0 to 1)."""

    index: int
    seed: int
    progress: float = 1.0


class TrainSampler(Sampler[list[SampleKey]]):
    """Shuffled batches of one process: global batch k is a slice of a permutation, and each process takes its part of it.

    An epoch is one pass over the examples, without the last, incomplete global batch. With `epoch_steps` it is that many
    steps, and permutations follow each other independently of where epochs begin.
    """

    def __init__(
        self,
        count: int,
        batch: int,
        seed: int,
        world: World,
        accumulate: int = 1,
        epochs: int = 1,
        epoch_steps: int | None = None,
    ) -> None:
        super().__init__()
        self.count, self.batch, self.seed, self.world, self.accumulate = count, batch, seed, world, accumulate
        self.epochs, self.epoch_steps = epochs, epoch_steps
        self.epoch = self.start = 0
        if self.steps == 0:
            raise ValueError(
                f"a global batch of {batch * accumulate * world.size} is larger than the {count} training examples; "
                "lower --optim.batch-size"
            )

    @property
    def steps(self) -> int:
        """Optimizer steps in an epoch."""
        return self.epoch_steps or self.count // (self.batch * self.accumulate * self.world.size)

    def begin(self, epoch: int, step: int = 0) -> None:
        """Set the epoch, and the optimizer step in it, where the next iteration starts."""
        self.epoch, self.start = epoch, step

    def __len__(self) -> int:
        return (self.steps - self.start) * self.accumulate

    def __iter__(self) -> Iterator[list[SampleKey]]:
        whole = self.batch * self.world.size
        began = self.epoch * self.steps * self.accumulate * whole if self.epoch_steps else self.epoch * self.count
        for k in range(self.start * self.accumulate, self.steps * self.accumulate):
            first = began + k * whole + self.world.rank * self.batch
            yield [self._key(place) for place in range(first, first + self.batch)]

    def _key(self, place: int) -> SampleKey:
        """The example at a position of the endless sequence of permutations."""
        turn = place // self.count
        index = _permutation(self.count, mix_seeds(self.seed, turn))[place % self.count]
        return SampleKey(index, mix_seeds(self.seed, turn, index), self.epoch / self.epochs)


@lru_cache(maxsize=2)
def _permutation(count: int, seed: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


class EvalSampler(Sampler[list[SampleKey]]):
    """Every example once over all processes, in order: no example is repeated to make the shards equal."""

    def __init__(self, count: int, batch: int, world: World) -> None:
        super().__init__()
        self.indices = range(world.rank, count, world.size)
        self.batch = batch

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        for first in range(0, len(self.indices), self.batch):
            yield [SampleKey(i, i) for i in self.indices[first : first + self.batch]]
