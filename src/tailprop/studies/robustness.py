"""`tailprop robustness`: evaluate a classifier on sketches, renditions, natural adversarial examples and corrupted images.

ImageNet-Sketch (Wang et al., 2019) and ImageNet-V2 (Recht et al., 2019) have ImageNet's 1000 classes, ImageNet-A and ImageNet-R
(Hendrycks et al., 2021) 200 of them, and only those 200 outputs are compared for each. The folders of ImageNet-C give mCE
(`tailprop.studies.imagenet_c`). Corruptions can also be applied to the validation images on the fly; then the reported number
is the mean top-1, not mCE, because frost is missing (`tailprop.studies.corruptions`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from PIL import Image

from tailprop.data.broken import BrokenFiles
from tailprop.data.splits import Contents
from tailprop.runtime.distributed import World, process_group
from tailprop.runtime.provenance import provenance
from tailprop.studies.corruptions import Corrupt
from tailprop.studies.imagenet_c import CorruptedFolder, find_corruptions, print_errors
from tailprop.studies.robustness_options import IMAGENET_A, IMAGENET_C, IMAGENET_R, IMAGENET_V2, OPTIONS, SKETCH, Robustness
from tailprop.tasks.classify.config import DataConfig
from tailprop.tasks.classify.data import open_source
from tailprop.tasks.classify.evaluate import align_source, evaluate_on
from tailprop.tasks.classify.load import ImageClassifier, load_classifier
from tailprop.tasks.classify.metrics import Accuracy, ignore
from tailprop.tasks.classify.sources import Source
from tailprop.tasks.common.bench import write_rows
from tailprop.tasks.common.classes import deduplicate_names
from tailprop.utils.terminal import Console, Table
from tailprop.utils.text import counted, say

__all__ = ["Row", "imagenet_indices", "measure", "run", "subset_indices"]

CLASSES: Final = {SKETCH: 1000, IMAGENET_A: 200, IMAGENET_R: 200, IMAGENET_V2: 1000}
SUBSETS: Final = {IMAGENET_A: "imagenet_a", IMAGENET_R: "imagenet_r"}  # timm's names of the lists of their classes
PAPER_TOP1: Final = {("tailprop_base", SKETCH): 23.1, ("tailprop_base", IMAGENET_A): 37.2}


@dataclass(frozen=True)
class Row:
    """One measurement. Severity 0 is the clean image."""

    data: str
    severity: int
    top1: float
    top5: float
    count: int
    classes: int  # classes that have images
    broken: int


class Selection:
    """A subset of a source with other labels."""

    def __init__(self, source: Source, rows: Sequence[int], classes: tuple[str, ...], labels: np.ndarray) -> None:
        self.source, self.rows, self.classes, self.labels = source, rows, classes, labels

    def read(self, index: int) -> Image.Image:
        return self.source.read(self.rows[index])

    def name(self, index: int) -> str:
        return self.source.name(self.rows[index])

    def contents(self) -> Contents | None:
        return None


def run(options: Robustness) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        classifier = load_classifier(options.checkpoint, options.model)
        origin, out = _origin(options, classifier, world), options.out

        def keep(rows: Sequence[Row]) -> None:
            if world.is_main and out is not None:
                write_rows(out, map(asdict, rows), origin)

        rows = measure(options, classifier, world, keep)
        if world.is_main:
            _print_all(rows, classifier, options.levels)


def measure(
    options: Robustness, classifier: ImageClassifier, world: World, keep: Callable[[Sequence[Row]], object] = ignore
) -> list[Row]:
    """All requested measurements, in the order of the table; `keep` is called with all rows so far after each one."""
    rows: list[Row] = []
    for row in _measure_each(options, classifier, world):
        rows.append(row)
        keep(rows)
    return rows


def _measure_each(options: Robustness, classifier: ImageClassifier, world: World) -> Iterator[Row]:
    folders = find_corruptions(options.imagenet_c) if options.imagenet_c is not None else []  # fail before long work
    for option, name in OPTIONS.items():
        if (root := getattr(options, option)) is not None:
            outputs = subset_indices(SUBSETS[name]) if name in SUBSETS else range(1000)
            yield _measure_imagenet(options, classifier, world, name, root, outputs)
    for folder in folders:
        yield _measure_corrupted(options, classifier, world, folder)
    if options.corrupt:
        yield from _measure_corruptions(options, classifier, world)


def _measure_imagenet(
    options: Robustness, classifier: ImageClassifier, world: World, name: str, root: Path, outputs: Sequence[int]
) -> Row:
    """The accuracy on a dataset with ImageNet's classes or a subset of them."""
    _check_imagenet_model(classifier, name)
    kind: Literal["folder", "parquet"] = "parquet" if _shards(root) else "folder"
    data = replace(options.data, source=kind, root=root).over(classifier.settings.data)
    selection = _relabel(_open_whole(data, root), name, outputs, options.limit)
    subset = torch.tensor(outputs)
    return _row(
        name, 0, evaluate_on(classifier, selection, data, world, options.batch_size, options.precision, subset, title=name)
    )


def _measure_corrupted(options: Robustness, classifier: ImageClassifier, world: World, folder: CorruptedFolder) -> Row:
    """The accuracy at a severity of ImageNet-C, without another crop of its images, which have 224 px."""
    given = replace(options.data, source="folder", root=folder.path).over(classifier.settings.data)
    data = replace(given, held_out=1.0, crop_pct=1.0, resize_px=None)
    source: Source | Selection = open_source(data, "validation")
    if _is_imagenet_model(classifier):
        source = _relabel(source, IMAGENET_C, range(1000), options.limit)
    else:  # a part of it, for a model of fewer classes
        align_source(source, classifier.names)
        rows = _rows(len(source.labels), options.limit)
        source = Selection(source, rows, source.classes, source.labels[rows])
    title = f"{folder.corruption} {folder.severity}"
    result = evaluate_on(classifier, source, data, world, options.batch_size, options.precision, title=title)
    return _row(f"{IMAGENET_C}/{folder.corruption}", folder.severity, result)


def _relabel(source: Source, name: str, outputs: Sequence[int], limit: int) -> Selection:
    """The source with labels that are indices into `outputs`."""
    output_of = _outputs(source, name, outputs)
    index = {output: i for i, output in enumerate(outputs)}
    rows = _rows(len(source.labels), limit)
    labels = np.array([index[output_of[label]] for label in source.labels[rows].tolist()])
    return Selection(source, rows, tuple(imagenet_synsets()[i] for i in outputs), labels)


def _measure_corruptions(options: Robustness, classifier: ImageClassifier, world: World) -> Iterator[Row]:
    data = options.data.over(classifier.settings.data)
    source = open_source(data, "validation")
    align_source(source, classifier.names)
    rows = _rows(len(source.labels), options.limit)
    selection = Selection(source, rows, source.classes, source.labels[rows])
    preprocess, broken = classifier.transform(data), BrokenFiles(data.on_broken)
    kinds = [("clean", 0), *((name, severity) for name in options.corruptions for severity in options.levels)]
    for name, severity in kinds:
        transform = Corrupt(name, severity, 0, preprocess) if severity > 0 else preprocess
        how: dict[str, Any] = dict(transform=transform, title=f"{name} {severity}", broken=broken)
        result = evaluate_on(classifier, selection, data, world, options.batch_size, options.precision, **how)
        yield _row(name, severity, result)


def _row(data: str, severity: int, result: Accuracy) -> Row:
    classes = len(result.answers[:, 0].unique())
    return Row(data, severity, result.top1, result.top5, result.count, classes, len(result.broken))


def _rows(count: int, limit: int) -> range:
    """Every k-th of `count`, at most `limit`: datasets are sorted by class, so the first images would be of a few classes."""
    return range(0, count, -(-count // limit) if limit else 1)


@cache
def imagenet_synsets() -> tuple[str, ...]:
    """WordNet ids of ImageNet's 1000 classes, in the order of a model's outputs."""
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo().label_names())


@cache
def subset_indices(name: str) -> tuple[int, ...]:
    """The 200 outputs for the classes of ImageNet-A or ImageNet-R. timm ships the lists but has no function that reads them."""
    names = (files("timm.data") / "_info" / f"{name}_synsets.txt").read_text().split()
    return tuple(imagenet_synsets().index(name) for name in names)


def imagenet_indices(classes: Sequence[str]) -> list[int | None]:
    """ImageNet's class index for each class, by its name and not by its position; None for an unknown name.

    A name is a WordNet id as in the official folders (n01440764), ImageNet's description as in snapshots of Hugging Face
    (tench, Tinca tinca), or the class index itself. Two classes are described as "crane"; the second is crane2 in snapshots. If
    there is a single crane, its position decides.
    """
    from timm.data import ImageNetInfo

    known: dict[str, list[int]] = {}
    descriptions = ImageNetInfo().label_descriptions()
    for index, names in enumerate(zip(imagenet_synsets(), descriptions, deduplicate_names(descriptions), strict=True)):
        for name in {*names, str(index)}:
            known.setdefault(name, []).append(index)
    return [_choose(known.get(name, []), position) for position, name in enumerate(deduplicate_names(classes))]


def _choose(candidates: Sequence[int], position: int) -> int | None:
    if position in candidates:
        return position
    return candidates[0] if len(candidates) == 1 else None


def _outputs(source: Source, name: str, allowed: Sequence[int]) -> dict[int, int]:
    """The model's output for each class of the source that has images."""
    indices, found = imagenet_indices(source.classes), {}
    expected = set(allowed)
    for label in np.unique(source.labels).tolist():
        if not 0 <= label < len(indices):
            raise ValueError(f"label {label} in {name} is not a valid class index; the dataset has {len(indices)} classes")
        index = indices[label]
        if index is None or index not in expected:
            raise ValueError(
                f"class {source.classes[label]!r} is not one of {name}'s {len(expected)}; name its folders like "
                f"{imagenet_synsets()[allowed[0]]}"
            )
        found[label] = index
    return found


def _is_imagenet_model(classifier: ImageClassifier) -> bool:
    return len(classifier.names) == 1000 and _first_foreign(classifier.names) is None


def _first_foreign(names: Sequence[str]) -> int | None:
    """The first output that is not ImageNet's class of this index; unknown names are allowed if others are known."""
    indices = imagenet_indices(names)
    foreign = all(index is None for index in indices)
    return next((i for i, index in enumerate(indices) if foreign or index not in (None, i)), None)


def _check_imagenet_model(classifier: ImageClassifier, name: str) -> None:
    if len(classifier.names) != 1000:
        raise ValueError(
            f"{name} needs a model with ImageNet's 1000 classes, but {classifier.name} has {len(classifier.names)}"
        )
    if (wrong := _first_foreign(classifier.names)) is not None:
        raise ValueError(f"{name} needs ImageNet's order of classes, but output {wrong} is {classifier.names[wrong]!r}")


def _shards(root: Path) -> list[Path]:
    return sorted(root.glob("*.parquet")) + sorted(root.glob("data/*.parquet"))


def _open_whole(data: DataConfig, root: Path) -> Source:
    """All images of a test-only dataset, whatever its split is called (Sketch on Hugging Face: train)."""
    only_train = data.source == "parquet" and all(shard.name.startswith("train") for shard in _shards(root))
    return open_source(replace(data, held_out=1.0), "train" if only_train else "validation")


def _print_all(rows: Sequence[Row], classifier: ImageClassifier, levels: Sequence[int]) -> None:
    published = [row for row in rows if row.data.startswith(f"{IMAGENET_C}/")]
    if others := [row for row in rows if row not in published]:
        _print(others, classifier.name, levels)
    if published:
        names = dict.fromkeys(row.data for row in published)
        top1 = {name.removeprefix(f"{IMAGENET_C}/"): [row.top1 for row in published if row.data == name] for name in names}
        is_imagenet = _is_imagenet_model(classifier)
        print_errors(classifier.name, top1, is_imagenet)
        least, broken = min(row.classes for row in published), max(row.broken for row in published)
        if is_imagenet and least < 1000:
            say(f"only {least} of the 1000 classes have images here, so CE is not that of the literature")
        if broken:
            say(f"up to {counted(broken, 'broken image')} skipped")


def _print(rows: Sequence[Row], model: str, levels: Sequence[int]) -> None:
    corrupted = [row for row in rows if row.severity > 0]
    columns = levels if corrupted else ()
    paper = {row.data: PAPER_TOP1[model, row.data] for row in rows if (model, row.data) in PAPER_TOP1}
    title = f"{model}: top-1 in per cent" + (", by severity" if corrupted else "")
    table = Table("data", "images", *map(str, columns), "mean" if corrupted else "top-1", title=title)
    if paper:
        table.add_column("paper")
    for name in dict.fromkeys(row.data for row in rows):
        matching = [row for row in rows if row.data == name]
        reported = (f"{paper[name]:.1f}" if name in paper else "-",) if paper else ()
        table.add_row(name, str(matching[0].count), *_figures(matching, columns), *reported)
    if corrupted:
        table.add_section()
        reported = ("-",) if paper else ()
        table.add_row("mean over corruptions", str(corrupted[0].count), *_figures(corrupted, columns), *reported)
    console = Console()
    console.print(table)
    for row in rows:
        if row.classes < CLASSES.get(row.data, 0):
            console.print(f"{row.data}: only {row.classes} of its {CLASSES[row.data]} classes have images here")
    if broken := max(row.broken for row in rows):
        console.print(f"up to {counted(broken, 'broken image')} skipped")


def _figures(rows: Sequence[Row], levels: Sequence[int]) -> list[str]:
    """The mean top-1 at each severity, and over all rows."""
    columns = [[row.top1 for row in rows if row.severity == level] for level in levels]
    return [f"{np.mean(column):.2f}" if column else "-" for column in columns] + [f"{np.mean([r.top1 for r in rows]):.2f}"]


def _origin(options: Robustness, classifier: ImageClassifier, world: World) -> dict[str, str]:
    """The provenance that is added to every row."""
    size_px = options.data.size_px or classifier.settings.data.size_px
    about = dict(model=classifier.name, checkpoint=options.checkpoint, size_px=str(size_px))
    return about | dict(batch_size=str(options.batch_size), precision=options.precision) | provenance(world.device.type)
