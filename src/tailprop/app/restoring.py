"""The Restore page: a photograph damaged on the spot or before, restored in tiles, and how close it came.

Shapes: (H, W, C), C = 1 gray or 3 colour, and one more with transparency.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import imagecodecs
import numpy as np

from tailprop.app.library import Loaded
from tailprop.app.messages import choice, number
from tailprop.app.store import Photo
from tailprop.app.work import Job
from tailprop.data.raster import Pixels, image_pixels
from tailprop.tasks.restore.bicubic import crop_to_multiple, downscale, enlarge
from tailprop.tasks.restore.degrade import add_noise, compress, to_8_bits, to_unit
from tailprop.tasks.restore.metrics import psnr

__all__ = ["DAMAGES", "Damage", "Restored", "restore"]

DAMAGES: Final = ("none", "noise", "jpeg", "downscale")
MOST_PIXELS: Final = 24_000_000
WHOLE_PX: Final = 512  # a photo up to this side is restored as a whole
TILE_PX, OVERLAP_PX = 384, 48


@dataclass(frozen=True)
class Damage:
    """What is done to the photo before it is restored."""

    kind: str
    sigma: float = 25.0
    quality: int = 20
    seed: int = 0

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "Damage":
        return cls(
            kind=choice(body, "damage", DAMAGES),
            sigma=number(body, "sigma", 0, 100, 25),
            quality=int(number(body, "quality", 1, 100, 20)),
            seed=int(number(body, "seed", 0, 1e6, 0)),
        )


@dataclass(frozen=True)
class Restored:
    """The photo before and after, and clean where that is known."""

    name: str
    model: str
    before: Pixels
    after: Pixels
    clean: Pixels | None
    seconds: float

    def summary(self) -> dict[str, Any]:
        h, w = self.after.shape[:2]
        found: dict[str, Any] = {"width": w, "height": h, "seconds": round(self.seconds, 2), "model": self.model}
        found["megapixels"] = round(h * w / 1e6, 3)
        if self.clean is not None:
            colours = _colours(self.clean)
            found["psnr_before"], found["psnr_after"] = (
                _finite(psnr(image[..., :colours], self.clean[..., :colours])) for image in (self.before, self.after)
            )
        return found

    def png(self, which: str) -> bytes:
        image = {"before": self.before, "after": self.after, "clean": self.clean}.get(which)
        if image is None:
            raise ValueError("there is no such image of this job")
        return bytes(imagecodecs.png_encode(np.ascontiguousarray(image[..., 0] if image.shape[2] == 1 else image), level=4))


def _finite(decibels: float) -> float:
    return round(min(decibels, 99.0), 2)  # equal images have no noise at all


def _colours(pixels: Pixels) -> int:
    return 1 if pixels.shape[2] <= 2 else 3


def restore(loaded: Loaded, photo: Photo, damage: Damage, job: Job) -> Restored:
    """Damage and restore a photo; the job is told of every tile, and stops there once it is cancelled."""
    width, height = photo.image.size
    if width * height > MOST_PIXELS:
        raise ValueError(
            f"{photo.name} has {width * height / 1e6:.0f} megapixels, and the page restores up to {MOST_PIXELS // 1_000_000}; "
            f"tailprop predict {loaded.entry.name} restores larger ones"
        )
    if loaded.entry.task != "restore":
        raise ValueError(f"{loaded.entry.name} is no restoration network; choose another model")
    pixels, scale = image_pixels(photo.image), int(loaded.predictor.scale)
    given, clean = _damaged(pixels, damage, scale)
    job.tick(0.02)
    tiles = None if max(given.shape[:2]) <= WHOLE_PX else TILE_PX
    begun = time.perf_counter()
    with loaded.in_use():
        after = loaded.predictor.restore_pixels(given, tiles, OVERLAP_PX, "fp32", lambda share: job.tick(0.98 * share))
    seconds = time.perf_counter() - begun
    before = enlarge(given, scale) if scale > 1 else given
    return Restored(photo.name, loaded.entry.name, before, after, clean, seconds)


def _damaged(pixels: Pixels, damage: Damage, scale: int) -> tuple[Pixels, Pixels | None]:
    """The network's input, and the clean image where it is known; both are what a file would hold, 8 bits."""
    if damage.kind == "none":
        return pixels, None
    clean = to_8_bits(pixels[..., : _colours(pixels)])
    if (damage.kind == "downscale") != (scale > 1):
        other = "is for enlarging: make the image smaller" if scale > 1 else "does not enlarge: add noise or JPEG"
        raise ValueError(f"this model {other}, or restore the photo as it is")
    if damage.kind == "noise":
        noisy = add_noise(to_unit(clean), damage.sigma, np.random.default_rng(damage.seed))
        return (255 * noisy.clip(0, 1)).round().astype(np.uint8), clean
    if damage.kind == "jpeg":
        return compress(clean, damage.quality), clean
    clean = crop_to_multiple(clean, scale)
    return downscale(clean, scale), clean
