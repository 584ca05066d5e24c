"""Small image sets held in memory whole: the embedded digits, and parquet snapshots of a few hundred megabytes.

Shapes: N images, C channels, H height, W width.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ImageSet", "load_digits", "load_parquet"]


@dataclass(frozen=True)
class ImageSet:
    """Images with their labels, and the names of the classes."""

    images: Tensor  # (N, C, H, W) uint8
    labels: Tensor  # (N,) int64
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def batches(
        self, size: int, generator: torch.Generator | None = None, flip: bool = False, shift_px: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of images in [-1, 1] with labels; shuffled and augmented if a generator is given, else in order.

        A shuffled pass drops the last, smaller batch.
        """
        if generator is None:
            for images, labels in zip(self.images.split(size), self.labels.split(size), strict=True):
                yield _normalise(images), labels
            return
        order = torch.randperm(len(self), generator=generator)
        for index in order[: len(self) // size * size].split(size):
            images = _shift(_normalise(self.images[index]), shift_px, generator)
            if flip:
                mirrored = torch.rand(size, generator=generator) < 0.5
                images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
            yield images, self.labels[index]


def load_digits(test_share: float = 1 / 3, size_px: int = 32) -> tuple[ImageSet, ImageSet]:
    """scikit-learn's 1,797 handwritten digits (8x8, real scans), enlarged; split by class, always the same way."""
    from sklearn.datasets import load_digits as sklearn_digits
    from sklearn.model_selection import train_test_split

    raw, labels = sklearn_digits(return_X_y=True)
    images = torch.tensor(raw, dtype=torch.float32).reshape(-1, 1, 8, 8) * (255 / 16)
    images = F.interpolate(images, size=(size_px, size_px), mode="bicubic").clamp(0, 255).round().to(torch.uint8)
    train, test = train_test_split(np.arange(len(labels)), test_size=test_share, stratify=labels, random_state=0)
    names = tuple(str(digit) for digit in range(10))
    targets = torch.tensor(labels, dtype=torch.int64)
    return ImageSet(images[train], targets[train], names), ImageSet(images[test], targets[test], names)


def load_parquet(root: Path, split: str, size_px: int) -> ImageSet:
    """All images of `root/{split}-*.parquet` (Hugging Face's image format), resized to a square."""
    import pyarrow.parquet as pq
    from PIL import Image

    shards = sorted(root.glob(f"{split}-*.parquet"))
    if not shards:
        raise ValueError(f"no {split}-*.parquet under {root}; give the folder of a Hugging Face image snapshot")
    images, labels = [], []
    for shard in shards:
        for row in pq.read_table(shard, columns=["image", "label"]).to_pylist():
            picture = Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")
            if picture.size != (size_px, size_px):
                picture = picture.resize((size_px, size_px), Image.Resampling.BICUBIC, reducing_gap=3.0)
            images.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1))
            labels.append(row["label"])
    names = tuple(str(i) for i in range(max(labels) + 1))
    return ImageSet(torch.stack(images), torch.tensor(labels), names)


def _normalise(images: Tensor) -> Tensor:
    return images.float() / 127.5 - 1


def _shift(images: Tensor, most_px: int, generator: torch.Generator) -> Tensor:
    """Each image moved by up to `most_px` pixels, the border reflected."""
    if most_px == 0:
        return images
    n, _, h, w = images.shape
    padded = F.pad(images, (most_px,) * 4, mode="reflect")
    dy, dx = torch.randint(0, 2 * most_px + 1, (2, n), generator=generator).tolist()
    return torch.stack([img[:, y : y + h, x : x + w] for img, y, x in zip(padded, dy, dx, strict=True)])
