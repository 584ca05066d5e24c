"""`tailprop predict` for an exported restorer: onnxruntime and numpy. Nothing here imports PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from tailprop.data.images import list_images
from tailprop.data.raster import Pixels, peak
from tailprop.engine.exported import OnnxModel
from tailprop.tasks.common.exported import Array, open_exported, task_settings
from tailprop.tasks.restore.bicubic import enlarge
from tailprop.tasks.restore.degrade import to_unit
from tailprop.tasks.restore.options import RestorePredict
from tailprop.tasks.restore.report import Restore, restore_files
from tailprop.tasks.restore.tiles import tiles
from tailprop.utils.validation import check_between

__all__ = ["RestoreExport", "restore_pixels", "run"]


@dataclass(frozen=True)
class RestoreExport:
    """What an exported restorer needs besides its network."""

    scale: int = 1
    """How many times larger the restored image is."""
    grid_px: int = 1
    """Side of the grid that the network divides an image into; tiles begin at multiples of it."""

    def check(self) -> None:
        check_between("scale", self.scale, 1, 16)
        check_between("grid_px", self.grid_px, 1, 256)


def run(options: RestorePredict) -> None:
    options.check()

    def load() -> Restore:
        model = open_exported(options)
        settings = task_settings(model.about, RestoreExport, model.path)
        return partial(restore_pixels, model, settings)

    restore_files(options, list_images(options.images), load)


def restore_pixels(
    model: OnnxModel,
    settings: RestoreExport,
    pixels: Pixels,
    tile_px: int | None = None,
    overlap_px: int = 64,
    tick: Callable[[float], object] = lambda _share: None,
) -> Pixels:
    """Restore an image, (H, W, C) -> (sH, sW, C), as `ImageRestorer.restore_pixels` does."""
    colours = 1 if pixels.shape[2] <= 2 else 3
    unit = np.moveaxis(to_unit(pixels[..., :colours]), -1, 0)  # (colours, H, W)
    chans, scale = model.about.input.channels, settings.scale
    rounds = colours if chans == 1 else 1

    def restore(image: Array) -> Array:  # (chans, H, W) -> (chans, sH, sW)
        done = _tiled if tile_px is not None and tile_px < max(image.shape[1:]) else _whole
        return done(model, settings, image, tile_px or 0, overlap_px, lambda share: tick(share / rounds))

    if chans == 1:
        restored = np.concatenate([restore(channel[None]) for channel in unit])
    elif colours == chans:
        restored = restore(unit)
    else:  # a gray image by a colour network: as equal channels, whose results are averaged
        restored = restore(np.repeat(unit, chans, axis=0)).mean(0, keepdims=True)
    values = np.round(restored.clip(0, 1) * np.float32(peak(pixels))).astype(pixels.dtype)
    alpha = pixels[..., colours:]
    return np.concatenate([np.moveaxis(values, 0, -1), enlarge(alpha, scale) if scale > 1 else alpha], axis=2)


def _whole(
    model: OnnxModel, settings: RestoreExport, image: Array, _tile: int, _overlap: int, tick: Callable[[float], object]
) -> Array:
    found = model.single(image[None], len(image), settings.scale)[0]
    tick(1.0)
    return found


def _tiled(
    model: OnnxModel, settings: RestoreExport, image: Array, tile: int, overlap: int, tick: Callable[[float], object]
) -> Array:
    """In overlapping tiles that are blended across the overlap, as `inference.restore_tiled` does."""
    scale, (chans, h, w) = settings.scale, image.shape
    down, across = (tiles(side, tile, overlap, settings.grid_px) for side in (h, w))
    total = np.zeros((chans, scale * h, scale * w), dtype=np.float32)
    weights = np.zeros((scale * h, scale * w), dtype=np.float32)
    for rows, columns in ((rows, columns) for rows in down for columns in across):
        restored = model.single(image[None, :, rows, columns], chans, scale)[0]
        vertical, horizontal = (_ramp(part, side, overlap, scale) for part, side in ((rows, h), (columns, w)))
        fade = vertical[:, None] * horizontal
        place = tuple(slice(scale * part.start, scale * part.stop) for part in (rows, columns))
        total[(slice(None), *place)] += fade * restored
        weights[place] += fade
        tick(1 / (len(down) * len(across)))
    total /= weights
    return total


def _ramp(part: slice, length: int, overlap: int, scale: int) -> Array:
    """Blending weights along a side of a tile: they rise over the overlap, except at the border of the image."""
    size = scale * (part.stop - part.start)
    rise = (np.arange(1, size + 1, dtype=np.float32) / (scale * overlap + 1)).clip(max=1)
    ones = np.ones_like(rise)
    return (ones if part.start == 0 else rise) * (ones if part.stop == length else rise[::-1])
