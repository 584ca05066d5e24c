"""`tailprop predict` for a classifier: the most probable classes of images, as a table, CSV or JSON."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.images import list_images, prefetch, read_image, suppress_pillow_warnings
from tailprop.runtime.distributed import process_group
from tailprop.tasks.classify.load import ClassPrediction, ImageClassifier, load_classifier
from tailprop.tasks.classify.options import ClassifyPredict
from tailprop.tasks.classify.report import Prediction, write_predictions
from tailprop.tasks.common.progress import SkippedImages, print_line, progress_bar
from tailprop.utils.terminal import Console
from tailprop.utils.text import counted

__all__ = ["Prediction", "classify_images", "run"]


def run(options: ClassifyPredict) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        if world.is_main:  # under torchrun only rank 0 predicts
            paths = list_images(options.images)
            classifier = load_classifier(options.checkpoint, options.model, options.size_px)
            classifier.model.to(world.device)
            predictions = _classify_with_progress(options, classifier, paths)
            write_predictions(predictions, options, f"{Path(options.checkpoint).name}, {classifier.name}")


def classify_images(
    classifier: ImageClassifier,
    paths: Sequence[Path],
    on_broken: Callable[[Broken], object],
    top: int = 5,
    batch_size: int = 32,
    precision: str = "fp32",
    tick: Callable[[float], object] = lambda _count: None,
) -> list[Prediction]:
    """The most probable classes of every image that can be read, in order.

    Args:
        on_broken: Called with each image that cannot be read; may raise.
        tick: Called with the number of images of each batch, for a progress bar.
    """
    read = _reader(classifier)
    predictions: list[Prediction] = []
    with suppress_pillow_warnings():
        for examples in prefetch(paths, read, batch_size):
            good: list[tuple[Path, Tensor]] = []
            for path, image in examples:
                if isinstance(image, Broken):
                    on_broken(image)
                else:
                    good.append((path, image))
            if good:
                names = [str(path) for path, _ in good]
                scores = classifier.predict_tensors(torch.stack([image for _, image in good]), precision, names)
                predictions += [_prediction(path, one, top) for (path, _), one in zip(good, scores, strict=True)]
            tick(len(examples))
    return predictions


def _prediction(path: Path, scores: ClassPrediction, top: int) -> Prediction:
    return Prediction(str(path), tuple(scores.top(top)))


def _reader(classifier: ImageClassifier) -> Callable[[Path], Tensor | Broken]:
    mode, transform = classifier.mode, classifier.transform()

    def read(path: Path) -> Tensor | Broken:
        image = read_image(path, mode)
        return image if isinstance(image, Broken) else transform(image)

    return read


def _classify_with_progress(options: ClassifyPredict, classifier: ImageClassifier, paths: Sequence[Path]) -> list[Prediction]:
    console = Console(stderr=True)
    skipped = SkippedImages(console, options.on_broken, len(paths))
    with progress_bar("classifying", len(paths), console, len(paths) > options.batch_size) as advance:
        how = (options.top, options.batch_size, options.precision, advance)
        predictions = classify_images(classifier, paths, skipped.add, *how)
    if skipped.broken:
        counts = f"{len(skipped.broken)} of {counted(len(paths), 'image')} skipped, {len(predictions)} classified"
        print_line(console, counts)
    return predictions
