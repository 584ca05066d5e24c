"""`tailprop predict` for an exported classifier: onnxruntime, Pillow and numpy. Nothing here imports PyTorch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from tailprop.data.broken import Broken
from tailprop.data.images import crop_long_strip, list_images, prefetch, read_image, suppress_pillow_warnings
from tailprop.engine.exported import OnnxModel
from tailprop.tasks.classify.options import ClassifyPredict
from tailprop.tasks.classify.report import ClassScore, Prediction, rounded, write_predictions
from tailprop.tasks.common.exported import Array, open_exported, task_settings, to_unit_chw
from tailprop.tasks.common.progress import SkippedImages, print_line, progress_bar
from tailprop.utils.terminal import Console
from tailprop.utils.text import counted
from tailprop.utils.validation import check_between, check_choice

__all__ = ["ClassifyExport", "preprocess", "run"]

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "lanczos": Image.Resampling.LANCZOS,
}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_LARGEST_PX = 16_384


@dataclass(frozen=True)
class ClassifyExport:
    """What an exported classifier needs besides its network."""

    size_px: int
    """Side of the central crop."""
    resize_px: int
    """Shorter side before the crop."""
    interpolation: str = "bicubic"

    def check(self) -> None:
        check_between("size_px", self.size_px, 1, _LARGEST_PX)
        check_between("resize_px", self.resize_px, self.size_px, _LARGEST_PX)
        check_choice("interpolation", self.interpolation, tuple(_FILTERS))

    def at_size(self, size_px: int | None) -> "ClassifyExport":
        """The same for another size, with the same share of the image in the crop."""
        if size_px is None:
            return self
        return ClassifyExport(size_px, max(size_px, round(size_px * self.resize_px / self.size_px)), self.interpolation)


def run(options: ClassifyPredict) -> None:
    options.check()
    model = open_exported(options, ("model",))
    settings = task_settings(model.about, ClassifyExport, model.path).at_size(options.size_px)
    if model.about.input.channels not in _MODES:
        raise ValueError(f"{model.path} takes {model.about.input.channels} channels; images have 1, 3 or 4")
    if not model.about.names:
        raise ValueError(f"{model.path} has no class names in its description; export it again")
    settings.check()
    paths = list_images(options.images)
    console = Console(stderr=True)
    skipped = SkippedImages(console, options.on_broken, len(paths))
    with progress_bar("classifying", len(paths), console, len(paths) > options.batch_size) as advance:
        predictions = _classify(model, settings, paths, options, skipped.add, advance)
    if skipped.broken:
        counts = f"{len(skipped.broken)} of {counted(len(paths), 'image')} skipped, {len(predictions)} classified"
        print_line(console, counts)
    write_predictions(predictions, options, f"{model.path.name}, {model.about.architecture}")


def _classify(
    model: OnnxModel,
    settings: ClassifyExport,
    paths: Sequence[Path],
    options: ClassifyPredict,
    on_broken: Callable[[Broken], object],
    tick: Callable[[float], object],
) -> list[Prediction]:
    mode = _MODES[model.about.input.channels]

    def read(path: Path) -> Array | Broken:
        image = read_image(path, mode)
        return image if isinstance(image, Broken) else preprocess(image, settings)

    predictions: list[Prediction] = []
    with suppress_pillow_warnings():
        for examples in prefetch(paths, read, options.batch_size):
            good: list[tuple[Path, Array]] = []
            for path, image in examples:
                if isinstance(image, Broken):
                    on_broken(image)
                else:
                    good.append((path, image))
            if good:
                batch = model.normalised(np.stack([image for _, image in good]))
                logits = model.single(batch, len(model.about.names))
                rows = zip(good, logits, strict=True)
                predictions += [Prediction(str(path), _top(row, model.about.names, options.top)) for (path, _), row in rows]
            tick(len(examples))
    return predictions


def _top(logits: Array, names: Sequence[str], count: int) -> tuple[ClassScore, ...]:
    odds = np.exp(logits - logits.max())
    probabilities = odds / odds.sum()
    order = np.argsort(-probabilities, kind="stable")[:count].tolist()
    return tuple(ClassScore(i, names[i], rounded(float(probabilities[i]))) for i in order)


def preprocess(image: Image.Image, settings: ClassifyExport) -> Array:
    """The central crop of the resized image, (C, S, S) from 0 to 1, as `eval_transform` makes it."""
    image = crop_long_strip(image)
    short, size = settings.resize_px, settings.size_px
    w, h = image.size
    if min(w, h) != short:
        shape = (short, int(short * h / w)) if w <= h else (int(short * w / h), short)
        image = image.resize(shape, _FILTERS[settings.interpolation])
    left, top = (round((side - size) / 2) for side in image.size)
    return to_unit_chw(image.crop((left, top, left + size, top + size)))
