"""Common corruptions of images at five severities: noise, blur, weather, compression.

After Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations" (ICLR 2019,
ImageNet-C), reimplemented with the parameters of their published code. The package `imagecorruptions` on PyPI is not
used: it is unmaintained, and its release fails with a current scikit-image (bethgelab/imagecorruptions issue 30).

Differences from ImageNet-C:

- Frost is missing. It needs photographs of frost, which this project does not ship.
- The published parameters are for images of 224 px. Lengths (blur radii, streaks, flakes, displacements) are multiplied by
  min(side) / 224, so that a corruption covers the same fraction of any image. Noise, JPEG blocks and
  the grain of glass blur belong to the pixel grid and are not scaled.
- Images stay in memory, while ImageNet-C is stored as JPEG of quality 85. The docstrings describe further differences.

A corruption is a pure function of an RGB image, a severity from 1 to 5 and a generator. Shapes: H height, W width.
"""

import difflib
import io
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from scipy import fft, ndimage, signal
from torch import Tensor
from torchvision.transforms import Compose, ToTensor

from tailprop.data.images import open_image

__all__ = ["CORRUPTIONS", "SEVERITIES", "Corrupt", "check_corruption", "check_severity"]

SEVERITIES: Final = (1, 2, 3, 4, 5)
REFERENCE_PX: Final = 224  # image size of the published lengths

Array = npt.NDArray[np.floating[Any]]
T = TypeVar("T")


def gaussian_noise(image: Image.Image, severity: int, rng: np.random.Generator) -> Image.Image:
    """Low light: independent Gaussian noise."""
    pixels = _pixels(image)
    return _image(pixels + rng.normal(scale=_at(severity, 0.08, 0.12, 0.18, 0.26, 0.38), size=pixels.shape))


def shot_noise(image: Image.Image, severity: int, rng: np.random.Generator) -> Image.Image:
    """Few photons: every value is a Poisson count."""
    photons = _at(severity, 60, 25, 12, 5, 3)
    return _image(rng.poisson(_pixels(image) * photons) / photons)


def impulse_noise(image: Image.Image, severity: int, rng: np.random.Generator) -> Image.Image:
    """Bit errors: a fraction of the values becomes 0 or 1."""
    pixels = _pixels(image)
    hit = rng.random(pixels.shape) < _at(severity, 0.03, 0.06, 0.09, 0.17, 0.27)
    return _image(np.where(hit, rng.integers(0, 2, pixels.shape), pixels))


def defocus_blur(image: Image.Image, severity: int, _rng: np.random.Generator) -> Image.Image:
    """Out of focus: the mean over a disk.

    The disk is rasterized with bilinear weights, which also works for a radius below one pixel; this replaces the published
    small Gaussian on the edge of the disk.
    """
    radius = _at(severity, 3, 4, 6, 8, 10) * _scale(image)
    points = np.linspace(-radius, radius, 64)
    y, x = np.meshgrid(points, points, indexing="ij")
    inside = y**2 + x**2 <= radius**2
    return _image(_convolve(_pixels(image), _kernel(y[inside], x[inside], np.ones(inside.sum())), "reflect"))


def glass_blur(image: Image.Image, severity: int, rng: np.random.Generator) -> Image.Image:
    """Frosted glass: blur, replace every pixel by a nearby one a few times, and blur again.

    The published loop intends to swap two pixels but, because rows of an array are views, copies one over the other; this
    function copies, too. If a scaled shift is not an integer, the value is interpolated.
    """
    sigma, reach, rounds = _at(severity, (0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))
    scale, sigmas = _scale(image), (sigma * _scale(image), sigma * _scale(image), 0)
    pixels = ndimage.gaussian_filter(_pixels(image), sigmas, mode="nearest")
    for _ in range(rounds):
        shift = _chained(rng.integers(-reach, reach, (2, image.height, image.width)), reach)  # without +reach, as published
        pixels = _sample(pixels, np.indices((image.height, image.width)) + shift * scale, "nearest")
    return _image(ndimage.gaussian_filter(pixels, sigmas, mode="nearest"))


def motion_blur(image: Image.Image, severity: int, rng: np.random.Generator) -> Image.Image:
    """A moving camera: blur along a direction within 45 degrees of the horizontal."""
    radius, sigma = _at(severity, (10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
    return _image(_streak(_pixels(image), radius, sigma, rng.uniform(-45, 45), _scale(image)))


def zoom_blur(image: Image.Image, severity: int, _rng: np.random.Generator) -> Image.Image:
    """A camera moving forward: the mean of the image and of its enlargements."""
    most, count = _at(severity, (1.11, 12), (1.15, 16), (1.20, 11), (1.24, 13), (1.30, 11))
    frames = [_pixels(_enlarge(image, factor)) for factor in np.linspace(1, most, count)]
    return _image(np.mean([_pixels(image), *frames], axis=0))


def snow(image: Image.Image, severity: int, rng: np.random.Generator) -> Image.Image:
    """Falling snow: streaks of enlarged noise above a threshold, over a whitened image.

    The flakes are drawn at 224 px and resized to the image: on a smaller grid, flakes below one pixel would cover more.
    """
    level, spread, size, threshold, radius, sigma, kept = _at(
        severity,
        (0.1, 0.3, 3.0, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2.0, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4.0, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    )
    noise = rng.normal(level, spread, _reference_shape(image)).astype(np.float32)
    flakes = np.asarray(_enlarge(Image.fromarray(noise), size))
    flakes = np.where(flakes < threshold, 0, flakes).clip(0, 1)
    flakes = _streak(flakes[..., None], radius, sigma, rng.uniform(-135, -45))
    layer = _resize(flakes[..., 0], image)[..., None]  # (H, W, 1)
    pixels = _pixels(image)
    grey = pixels @ np.array([[0.299], [0.587], [0.114]])
    pixels = kept * pixels + (1 - kept) * np.maximum(pixels, 1.5 * grey + 0.5)
    return _image(pixels + layer + np.rot90(layer, 2))


def fog(image: Image.Image, severity: int, rng: np.random.Generator) -> Image.Image:
    """Haze in the form of a plasma fractal."""
    amount, decay = _at(severity, (1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))
    pixels = _pixels(image)
    haze = _plasma(max(image.size), decay, rng)[: image.height, : image.width, None]
    brightest = pixels.max()
    return _image((pixels + amount * haze) * brightest / (brightest + amount))


def brightness(image: Image.Image, severity: int, _rng: np.random.Generator) -> Image.Image:
    """Daylight: the V channel of HSV is raised."""
    from skimage.color import hsv2rgb, rgb2hsv

    colours = rgb2hsv(_pixels(image))
    colours[..., 2] = (colours[..., 2] + _at(severity, 0.1, 0.2, 0.3, 0.4, 0.5)).clip(0, 1)
    return _image(hsv2rgb(colours))


def contrast(image: Image.Image, severity: int, _rng: np.random.Generator) -> Image.Image:
    """Every value is moved towards the mean of its channel."""
    pixels = _pixels(image)
    mean = pixels.mean(axis=(0, 1))
    return _image(mean + (pixels - mean) * _at(severity, 0.4, 0.3, 0.2, 0.1, 0.05))


def elastic_transform(image: Image.Image, severity: int, rng: np.random.Generator) -> Image.Image:
    """Elastic deformation: a random affine map and a smooth random displacement.

    The displacement does not grow with severity: 1 and 2 shift the whole image far, 3 to 5 deform it locally more and more.
    Both maps are composed and the image is sampled once, while the published code samples it twice.
    """
    sides = _at(severity, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
    strength, smoothness, jitter = (244 * side for side in sides)  # 244 is published; its authors intended 224
    moved = [_resize(_smooth(rng.uniform(-1, 1, _reference_shape(image)), smoothness), image) for _ in range(2)]
    places = np.indices((image.height, image.width)) + np.stack(moved) * (strength * _scale(image))  # (2, H, W)
    linear, offset = _jittered_affine(image, jitter * _scale(image), rng)
    places = np.tensordot(linear, places, axes=1) + offset[:, None, None]
    return _image(_sample(_pixels(image), places, "reflect"))


def pixelate(image: Image.Image, severity: int, _rng: np.random.Generator) -> Image.Image:
    """Downsample and upsample with a box filter."""
    share = _at(severity, 0.6, 0.5, 0.4, 0.3, 0.25)
    small = image.resize((int(image.width * share), int(image.height * share)), Image.Resampling.BOX)
    return small.resize(image.size, Image.Resampling.BOX)


def jpeg_compression(image: Image.Image, severity: int, _rng: np.random.Generator) -> Image.Image:
    """JPEG at low quality, by Pillow's encoder."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_at(severity, 25, 18, 15, 10, 7))
    return open_image(file).convert("RGB")


CORRUPTIONS: Final[dict[str, Callable[[Image.Image, int, np.random.Generator], Image.Image]]] = {
    corruption.__name__: corruption
    for corruption in (
        gaussian_noise,
        shot_noise,
        impulse_noise,
        defocus_blur,
        glass_blur,
        motion_blur,
        zoom_blur,
        snow,
        fog,
        brightness,
        contrast,
        elastic_transform,
        pixelate,
        jpeg_compression,
    )
}


class Corrupt:
    """The preprocessing of an image for evaluation, with a corruption between crop and normalisation.

    The noise of an image is drawn from torch's generator, which is seeded for every image; so it depends neither on the
    batch nor on the number of workers.

    Args:
        name: One of `CORRUPTIONS`.
        severity: 1 to 5.
        seed: Seed of the noise.
        then: The preprocessing, as returned by `eval_transform`.
    """

    def __init__(self, name: str, severity: int, seed: int, then: Compose) -> None:
        check_corruption(name)
        check_severity(severity)
        self.name, self.severity, self.seed = name, severity, seed
        cut = next((i for i, step in enumerate(then.transforms) if isinstance(step, ToTensor)), None)
        if cut is None:
            raise ValueError(f"a corruption needs a transform that converts the image to a tensor, but there is none in {then}")
        self.crop, self.prepare = Compose(then.transforms[:cut]), Compose(then.transforms[cut:])

    def __call__(self, image: Image.Image) -> Tensor:
        drawn = int(torch.randint(2**31, ()))
        return self.prepare(self._corrupt(self.crop(image), np.random.default_rng((self.seed, drawn))))

    def _corrupt(self, image: Image.Image, rng: np.random.Generator) -> Image.Image:
        corrupted = CORRUPTIONS[self.name](image.convert("RGB"), self.severity, rng).convert(image.mode)
        if image.mode == "RGBA":
            corrupted.putalpha(image.getchannel("A"))
        return corrupted


def check_corruption(name: str) -> None:
    if name not in CORRUPTIONS:
        close = difflib.get_close_matches(name, CORRUPTIONS, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(CORRUPTIONS)}"
        why = (
            "frost needs photographs that are not shipped (--imagenet-c measures the published images); "
            if name == "frost"
            else ""
        )
        raise ValueError(f"unknown corruption {name!r}; {why}{hint}")


def check_severity(severity: int) -> None:
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {severity}")


def _at(severity: int, *values: T) -> T:
    """The value for a severity."""
    check_severity(severity)
    return values[severity - 1]


def _pixels(image: Image.Image) -> Array:
    return np.asarray(image, dtype=np.float64) / 255  # (H, W, 3)


def _image(pixels: Array) -> Image.Image:
    return Image.fromarray(np.round(pixels.clip(0, 1) * 255).astype(np.uint8))


def _scale(image: Image.Image) -> float:
    return min(image.size) / REFERENCE_PX


def _reference_shape(image: Image.Image) -> tuple[int, int]:
    """Height and width of the image when its shorter side is resized to 224 px."""
    return round(image.height / _scale(image)), round(image.width / _scale(image))


def _resize(field: Array, like: Image.Image) -> Array:
    return np.asarray(Image.fromarray(field.astype(np.float32)).resize(like.size, Image.Resampling.BILINEAR))


def _sample(pixels: Array, places: Array, border: Literal["reflect", "nearest"]) -> Array:
    """Bilinearly interpolated values at coordinates (2, H, W)."""
    channels = np.moveaxis(pixels, -1, 0)
    return np.stack([ndimage.map_coordinates(channel, places, order=1, mode=border) for channel in channels], axis=-1)


def _enlarge(image: Image.Image, factor: float) -> Image.Image:
    """The center of an image, enlarged to its size."""
    dx, dy = (side * (1 - 1 / factor) / 2 for side in image.size)
    return image.resize(image.size, Image.Resampling.BILINEAR, box=(dx, dy, image.width - dx, image.height - dy))


def _chained(shift: npt.NDArray[np.int64], reach: int) -> npt.NDArray[np.int64]:
    """The total displacement of each value when pixels are overwritten one by one, from the last to the first, by `shift`.

    A pixel that copies a later one gets what that one has copied before, and so on: a chain, followed here for all pixels at
    once by doubling. Pixels within `reach` of the border are not changed.
    """
    height, width = shift.shape[1:]
    y, x = places = np.indices((height, width))
    own = y * width + x
    moves = (y > reach) & (y <= height - reach) & (x > reach) & (x <= width - reach)
    source = np.where(moves, own + shift[0] * width + shift[1], own)
    old = own.size + np.arange(own.size)  # the second half represents the original values, where every chain ends
    chain = np.concatenate([np.where(source > own, source, source + own.size).ravel(), old])
    while not np.array_equal(further := chain[chain], chain):
        chain = further
    return np.stack(np.divmod(chain[: own.size].reshape(height, width) - own.size, width)) - places


def _streak(pixels: Array, radius: float, sigma: float, degrees: float, scale: float = 1.0) -> Array:
    """ImageMagick's motion blur: half a Gaussian along a line of twice the radius, from each pixel to one side.

    Points between pixels are weighted bilinearly, while ImageMagick rounds them: scaled kernels are too short for rounding.
    """
    steps = np.linspace(0, 2 * radius, int(np.ceil(2 * radius * max(scale, 1))) + 1)  # at most a pixel apart
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    angle = np.deg2rad(degrees)
    return _convolve(pixels, _kernel(steps * scale * np.sin(angle), steps * scale * np.cos(angle), weights), "edge")


def _kernel(y: Array, x: Array, weights: Array) -> Array:
    """Weighted points around the centre of a square kernel, each distributed bilinearly over four pixels."""
    reach = int(max(np.abs(y).max(), np.abs(x).max())) + 1
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    for i in (0, 1):
        for j in (0, 1):
            share = (1 - np.abs(y - top - i)) * (1 - np.abs(x - left - j))
            # where the weight is 0 the pixel may be outside of the kernel
            np.add.at(kernel, ((top + i + reach).clip(0, 2 * reach), (left + j + reach).clip(0, 2 * reach)), share * weights)
    return kernel / kernel.sum()


def _convolve(pixels: Array, kernel: Array, border: Literal["reflect", "edge"]) -> Array:
    margin = len(kernel) // 2
    padded = np.pad(pixels, ((margin, margin), (margin, margin), (0, 0)), mode=border)
    return signal.fftconvolve(padded, kernel[..., None], mode="valid", axes=(0, 1))


def _smooth(noise: Array, sigma: float) -> Array:
    """A Gaussian with reflected borders, by a cosine transform, because the published one is wider than the image."""
    y, x = (np.pi * np.arange(side) / side for side in noise.shape)
    decay = np.exp(-(sigma**2) * (y[:, None] ** 2 + x**2) / 2)
    return fft.idctn(fft.dctn(noise, norm="ortho") * decay, norm="ortho")


def _jittered_affine(image: Image.Image, jitter_px: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """The affine map that moves three randomly shifted corners of a central square back to their places."""
    centre, half = np.array([image.height // 2, image.width // 2]), min(image.size) // 3
    corners = centre + half * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = corners + rng.uniform(-jitter_px, jitter_px, corners.shape)
    solved = np.linalg.solve(np.column_stack([moved, np.ones(3)]), corners)  # (3, 2): two rows linear, one offset
    return solved[:2].T, solved[2]


def _plasma(least_side: int, decay: float, rng: np.random.Generator) -> Array:
    """A fractal in [0, 1] by the diamond-square algorithm on a torus, the side a power of two.

    The amplitude decreases by the square of `decay` with every halving, because the published code multiplies by it twice.
    """
    field, amplitude = np.zeros((1, 1)), 1.0
    while len(field) < least_side:
        side = len(field)
        noise = rng.uniform(-amplitude, amplitude, (3, side, side))
        below, right = np.roll(field, -1, axis=0), np.roll(field, -1, axis=1)
        centres = (field + below + right + np.roll(below, -1, axis=1)) / 4 + noise[0]
        finer = np.empty((2 * side, 2 * side))
        finer[::2, ::2], finer[1::2, 1::2] = field, centres
        finer[::2, 1::2] = (field + right + centres + np.roll(centres, 1, axis=0)) / 4 + noise[1]
        finer[1::2, ::2] = (field + below + centres + np.roll(centres, 1, axis=1)) / 4 + noise[2]
        field, amplitude = finer, amplitude / decay**2
    return (field - field.min()) / (field.max() - field.min())
