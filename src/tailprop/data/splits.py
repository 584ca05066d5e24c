"""What folders and snapshots share: the names a split goes by, a root that must exist, classes without names."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

__all__ = ["SPLITS", "existing_folder", "numbered_classes"]

SPLITS: Final = {"train": ("train", "training"), "validation": ("validation", "val", "valid", "test")}
_MOST_CLASSES: Final = 1_000_000


def existing_folder(root: Path) -> Path:
    if not root.is_dir():
        found = f"{root} is a file, not a folder" if root.exists() else f"no folder {root}"
        raise ValueError(f"{found}; give the root of the data with --data.root")
    return root


def numbered_classes(labels: np.ndarray, name: Callable[[int], str]) -> tuple[str, ...]:
    """Numbers in place of names, as many as the labels ask for."""
    count = int(labels.max(initial=-1)) + 1
    if count > _MOST_CLASSES:
        raise ValueError(f"label {count - 1} of {name(int(labels.argmax()))} is no number of a class; mend the labels")
    return tuple(map(str, range(count)))
