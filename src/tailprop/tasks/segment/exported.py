"""`tailprop predict` for an exported segmenter: onnxruntime, Pillow and numpy. Nothing here imports PyTorch.

Shapes: K classes; H, W size of the image; h, w size of a view, the resized and possibly flipped image that the network runs on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from PIL import Image

from tailprop.data.broken import Broken
from tailprop.data.formats.colors import ColorTable
from tailprop.data.images import list_images, read_image, suppress_pillow_warnings, unique_stems
from tailprop.data.resize import fit_within
from tailprop.engine.exported import OnnxModel
from tailprop.tasks.common.exported import Array, open_exported, resize_bilinear, task_settings, to_unit_chw
from tailprop.tasks.common.progress import SkippedImages, progress_bar
from tailprop.tasks.segment.config import InferenceConfig
from tailprop.tasks.segment.options import SegmentPredict
from tailprop.tasks.segment.report import ClassTable, check_out, print_table, save_prediction, write_classes
from tailprop.tasks.segment.windows import windows
from tailprop.utils.files import make_folder
from tailprop.utils.terminal import Console, Table
from tailprop.utils.validation import check_between

__all__ = ["SegmentExport", "label_pixels", "run"]

_LARGEST_PX = 65_536
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SegmentExport:
    """What an exported segmenter needs besides its network."""

    short_px: int
    """Shorter side the images are resized to."""
    long_px: int
    """Maximum longer side."""
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    first_label: int = 0
    """Value of the first class in label maps."""
    colors: tuple[tuple[int, int, int], ...] = ()
    """Colours of the classes in label maps; none = label maps have values."""
    ignored_colors: tuple[tuple[int, int, int], ...] = ()

    def check(self) -> None:
        check_between("short_px", self.short_px, 1, _LARGEST_PX)
        check_between("long_px", self.long_px, self.short_px, _LARGEST_PX)
        check_between("first_label", self.first_label, 0, 65_535)
        self.inference.check()
        if any(not 0 <= value <= 255 for color in (*self.colors, *self.ignored_colors) for value in color):
            raise ValueError("colors must have values from 0 to 255")

    def table(self, names: Sequence[str]) -> ClassTable:
        if self.colors and len(self.colors) != len(names):
            raise ValueError(f"the exported file has {len(self.colors)} colours for {len(names)} classes; export it again")
        colors = ColorTable(self.colors, self.ignored_colors) if self.colors else None
        return ClassTable(tuple(names), self.first_label, colors)


def run(options: SegmentPredict) -> None:
    options.check()
    model = open_exported(options)
    settings = task_settings(model.about, SegmentExport, model.path)
    settings = replace(settings, inference=options.inference.over(settings.inference))
    classes = settings.table(model.about.names)
    paths = list_images(options.images)
    make_folder(options.out)
    check_out(options, paths, classes)
    table, console = Table("image", "size", "classes, % of pixels"), Console(stderr=True)
    skipped = SkippedImages(console, options.on_broken, len(paths))
    with suppress_pillow_warnings(), progress_bar("segmenting", len(paths), console) as advance:
        for path, stem in zip(paths, unique_stems(paths), strict=True):
            advance(1)
            image = read_image(path, "RGB")
            if isinstance(image, Broken):
                skipped.add(image)
                continue
            labels = label_pixels(model, image, settings)
            table.add_row(
                str(path), f"{image.width}x{image.height}", save_prediction(options.out, stem, image, labels, classes)
            )
    write_classes(options.out, classes)
    print_table(options, table, classes)


def label_pixels(model: OnnxModel, image: Image.Image, settings: SegmentExport) -> Labels:
    """The class of every pixel, (H, W), as `inference.label_image` finds it."""
    unit = to_unit_chw(image)[None]  # (1, 3, H, W)
    h, w = unit.shape[-2:]
    inference, views = settings.inference, []
    for scale in inference.scales:
        size = fit_within(h, w, scale * settings.short_px, scale * settings.long_px)
        view = model.normalised(resize_bilinear(unit, size))
        views.append(_logits(model, view, inference))
        if inference.flip:
            views.append(_logits(model, view[..., ::-1], inference)[..., ::-1])
    if len(views) == 1:  # a single view needs no softmax
        return _best(views[0], (h, w))
    total = sum(_probabilities(resize_bilinear(view, (h, w))) for view in views)
    return np.argmax(np.asarray(total)[0], axis=0)


def _best(logits: Array, size: tuple[int, int]) -> Labels:
    """The class with the highest logit, resized a class at a time, so that the resized logits are never in memory at once."""
    best = resize_bilinear(logits[0, 0], size)
    labels = np.zeros(size, dtype=np.int64)
    for k in range(1, logits.shape[1]):
        score = resize_bilinear(logits[0, k], size)
        higher = score > best
        labels[higher] = k
        best = np.maximum(best, score)
    return labels


def _probabilities(logits: Array) -> Array:
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def _logits(model: OnnxModel, view: Array, inference: InferenceConfig) -> Array:
    h, w = view.shape[-2:]
    least = model.about.input.least_px
    view = np.pad(view, ((0, 0), (0, 0), (0, max(0, least - h)), (0, max(0, least - w))))  # thin images
    whole = inference.mode == "whole"
    logits = _run(model, view) if whole else _slide(model, view, inference.window_px, inference.stride_px)
    return logits[..., :h, :w]


def _run(model: OnnxModel, view: Array) -> Array:
    return model.single(view, len(model.about.names), scale=1)


def _slide(model: OnnxModel, view: Array, window: int, stride: int) -> Array:
    """The mean logits of all windows that contain a pixel. (1, 3, h, w) -> (1, K, h, w)"""
    h, w = view.shape[-2:]
    total = np.zeros((1, len(model.about.names), h, w), dtype=np.float32)
    count = np.zeros((h, w), dtype=np.float32)
    for top, bottom in windows(h, window, stride):
        for left, right in windows(w, window, stride):
            total[..., top:bottom, left:right] += _run(model, view[..., top:bottom, left:right])
            count[top:bottom, left:right] += 1
    return total / count
