"""Training images among those that are evaluated: a copy of the training data is easily taken for new data."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tailprop.data.splits import Contents, count_shared
from tailprop.utils.text import counted

__all__ = ["count_training_contents", "count_training_images", "describe_overlap"]


def count_training_images(list_training: Callable[[], Sequence[Path]], evaluated: Sequence[Path]) -> int | None:
    """How many evaluated files are, byte for byte, among the training files of a run; None if those cannot be read."""
    return count_training_contents(lambda: Contents.of_files(list_training()), lambda: Contents.of_files(evaluated))


def count_training_contents(
    open_training: Callable[[], Contents | None], open_evaluated: Callable[[], Contents | None]
) -> int | None:
    """The same for images that are not files of their own."""
    try:
        training, evaluated = open_training(), open_evaluated()
    except (ValueError, OSError):  # the training data is not where it was
        return None
    return None if training is None or evaluated is None else count_shared(training, evaluated)


def describe_overlap(overlap: int | None, count: int) -> str | None:
    """The overlap in a sentence; None if there is none."""
    if overlap is None:
        return "not checked for training images: the training data of the run is not available, or too large to compare"
    return f"{overlap} of the {counted(count, 'image')} are training images of this run (same bytes)" if overlap else None
