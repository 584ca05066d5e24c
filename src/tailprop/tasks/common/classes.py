"""Matching the classes of a dataset with those of a model."""

from collections import Counter
from collections.abc import Collection, Sequence

from tailprop.runtime.distributed import print_main
from tailprop.utils.text import listed

__all__ = ["align_classes", "deduplicate_names"]


def deduplicate_names(names: Sequence[str]) -> tuple[str, ...]:
    """Make class names unique: ImageNet's two cranes become crane and crane2, as in Hugging Face's snapshots."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}{seen[name]}")
    return tuple(unique)


def align_classes(
    names: Sequence[str], known: Sequence[str], where: str, present: Collection[int] | None = None, by_place: bool = False
) -> list[int | None]:
    """The model's class index for each class of the dataset, by name; a class that the model does not know raises an error.

    A name may have synonyms, as in ADE20K's table ("building, edifice"); then the first one is compared.

    Args:
        names: Class names of the dataset.
        known: Class names of the model.
        where: Name of the dataset in error messages.
        present: Class indices that occur in the dataset; the others need no match. None = all.
        by_place: If no name matches and the numbers of classes are equal, match by index and print a note.
    """
    if tuple(names) == tuple(known):
        return list(range(len(known)))
    index = _index(known)
    unique = deduplicate_names(names)
    found = [index.get(name, index.get(name.split(",")[0])) for name in unique]
    unknown = [name for i, name in enumerate(unique) if found[i] is None and (present is None or i in present)]
    if unknown and by_place and len(names) == len(known) and len(unknown) == len(names):
        print_main(f"{where} and the model have different class names: they are matched by index")
        return list(range(len(known)))
    if unknown:
        raise ValueError(f"{where} has classes that the model does not have: {listed(unknown)}; the model has {listed(known)}")
    for i, place in enumerate(found):
        counts = place is not None and (present is None or i in present)
        if counts and (other := found.index(place)) < i:
            raise ValueError(
                f"{where} has {names[other]!r} and {names[i]!r}, which are the same class of the model: {known[place or 0]!r}"
            )
    return found


def _index(known: Sequence[str]) -> dict[str, int]:
    """Class indices of the model by name, and by the first synonym where that is unique."""
    first = [name.split(",")[0] for name in known]
    return {name: i for i, name in enumerate(first) if first.count(name) == 1} | {
        name: i for i, name in enumerate(deduplicate_names(known))
    }
