"""Load a trained restoration network from a run folder or exported weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.raster import Pixels, image_pixels, peak, try_pixels
from tailprop.engine.run_settings import find_weights, read_settings
from tailprop.runtime.precision import autocast
from tailprop.tasks.common.models import check_finite, for_loading, load_weights
from tailprop.tasks.common.predictor import ImageInput, Predictor, as_list, check_unit_range, to_array
from tailprop.tasks.restore.bicubic import enlarge
from tailprop.tasks.restore.config import RestoreConfig
from tailprop.tasks.restore.degrade import to_unit
from tailprop.tasks.restore.inference import in_colour, restore_tiled, restore_whole
from tailprop.tasks.restore.task import build_restorer
from tailprop.tasks.restore.tiles import check_tiles, shared_px

__all__ = ["ImageRestorer", "load_restorer"]


@dataclass(frozen=True)
class ImageRestorer(Predictor[RestoreConfig, Pixels]):
    """A restoration network; it has no classes, so `names` is empty."""

    @property
    def name(self) -> str:
        return self.settings.model.name

    @property
    def in_chans(self) -> int:
        return self.settings.model.in_chans

    @property
    def scale(self) -> int:
        """How many times larger the restored image is."""
        return self.settings.data.scale

    @property
    def paper(self) -> str:
        """The paper's PSNR for this network and its test set, as text."""
        number = self.settings.paper_psnr.get(self.name)
        return "" if number is None else f"the paper, on {self.settings.paper_set}: {number} dB"

    def predict(self, images: Any, precision: str = "fp32", tile_px: int | None = None) -> Any:
        """The restored image, an array (H, W, C) with the bit depth and channels of the input, or a list of them for a list.

        Super-resolution returns an image that is larger by the scale.

        With `tile_px` the image is restored in tiles of that side, which takes less memory.
        """
        check_tiles(tile_px, None)
        given, is_list = as_list(images)
        overlap = shared_px(tile_px, None, 64)
        restored = [self.restore_pixels(_to_pixels(image), tile_px, overlap, precision) for image in given]
        return restored if is_list else restored[0]

    def predict_all(self, images: Sequence[ImageInput], precision: str = "fp32") -> list[Pixels]:
        return self.predict(list(images), precision)

    def restore(
        self,
        degraded: Tensor,
        tile_px: int | None = None,
        overlap_px: int = 32,
        precision: str = "fp32",
        tick: Callable[[float], object] = lambda _share: None,
    ) -> Tensor:  # (B, in_chans, H, W) -> (B, in_chans, sH, sW)
        """Restore images as a whole or in tiles; `tick` is called after each tile with its share of the work."""
        with autocast(degraded.device, precision):
            if tile_px is None or tile_px >= max(degraded.shape[-2:]):
                restored = restore_whole(self.model, degraded)
                tick(1.0)
            else:
                restored = restore_tiled(self.model, degraded, tile_px, overlap_px, tick, self.scale)
        check_finite(restored)
        return restored

    def restore_pixels(
        self,
        pixels: Pixels,
        tile_px: int | None = None,
        overlap_px: int = 64,
        precision: str = "fp32",
        tick: Callable[[float], object] = lambda _share: None,
    ) -> Pixels:
        """Restore an image, (H, W, C) -> (sH, sW, C), and keep its bit depth, channels and transparency.

        A gray network restores each channel of a colour image separately. A colour network runs on a gray image as three equal
        channels, and the result is their mean. `tick` is called after each tile with its share of the work.
        """
        colours = 1 if pixels.shape[2] <= 2 else 3
        unit = np.moveaxis(to_unit(pixels[..., :colours]), -1, 0).copy()
        degraded = torch.from_numpy(unit).to(self.device)  # (colours, H, W)
        rounds = colours if self.in_chans == 1 else 1

        def restore(image: Tensor) -> Tensor:  # (1, in_chans, H, W)
            return self.restore(image, tile_px, overlap_px, precision, lambda share: tick(share / rounds))

        if self.in_chans == 1:
            restored = torch.cat([restore(channel[None, None])[0] for channel in degraded])
        else:
            restored = in_colour(restore, degraded[None], self.in_chans)[0]
        values = (restored.clamp(0, 1) * peak(pixels)).round().cpu().numpy().astype(pixels.dtype)
        alpha = pixels[..., colours:]
        return np.concatenate([np.moveaxis(values, 0, -1), enlarge(alpha, self.scale) if self.scale > 1 else alpha], axis=2)


def _to_pixels(image: ImageInput) -> Pixels:
    """An image as an array (H, W, C) of 8 or 16 bits."""
    if isinstance(image, str | Path):
        pixels = try_pixels(Path(image))
        if isinstance(pixels, Broken):
            raise ValueError(str(pixels))
        return pixels
    if isinstance(image, Image.Image):
        return image_pixels(image)
    array = to_array(image)
    if np.issubdtype(array.dtype, np.floating):
        check_unit_range(array)
        array = np.clip(array * 65535 + 0.5, 0, 65535).astype(np.uint16)  # floats have more than 8 bits of precision
    if array.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"an image array must be uint8, uint16, or floats from 0 to 1, got {array.dtype}")
    return array[..., None] if array.ndim == 2 else array


def load_restorer(where: str | Path) -> ImageRestorer:
    """Load a restoration network from a run folder or exported weights."""
    weights = find_weights(where)
    config = read_settings(where, RestoreConfig)
    config = replace(config, model=for_loading(config.model))
    model = build_restorer(config.model, config.data.scale, report=False)
    return ImageRestorer(load_weights(model, weights, config.model.name), config, ())
