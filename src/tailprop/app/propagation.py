"""The Operator page: one image or a few impulses through TailProp, its two parts, and its rivals.

Every map goes through the functions of the package in float32. The response of an operator is what it makes of a signal whose
DCT is 1 everywhere, and its kernel what it makes of an impulse, so no formula is repeated here.

Shapes: H, W the map, C = 1 gray or 3 colour, N frequencies.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from tailprop.app.messages import Bytes, magma, number, points, text
from tailprop.app.store import Photographs
from tailprop.backbone.dct import dct, dct2, frequency_grid, idct
from tailprop.backbone.mixers.propagation import heat_conduct, wave_propagate
from tailprop.backbone.operator import tail_propagate

__all__ = ["OPERATORS", "Propagation", "compute"]

SIZES: Final = (128, 256, 512)
FREQUENCIES: Final = 96  # of a response curve, from 0 to pi
PROFILE_PX: Final = 129  # side of the map of a kernel
DECADES: Final = 5  # of the colour scale of impulses and spectra
OPERATORS: Final = ("tailprop", "gaussian", "cauchy", "heat", "wave")

Apply = Callable[[Tensor], Tensor]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Propagation:
    """What the sliders say."""

    size_px: int
    image: str  # id; empty = impulses
    impulses: tuple[tuple[float, float], ...]
    lam: float
    k_gauss: float
    k_cauchy: float
    order: float
    heat_fall: float
    wave_time: float
    wave_damping: float
    have: Mapping[str, Any] = field(default_factory=dict)  # keys of the views that the page shows already

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "Propagation":
        size = int(number(body, "size", min(SIZES), max(SIZES)))
        if size not in SIZES:
            raise ValueError(f"size must be one of {', '.join(map(str, SIZES))}, got {size}")
        return cls(
            size_px=size,
            image=text(body, "image", ""),
            impulses=points(body, "impulses"),
            lam=number(body, "lam", 0, 1),
            k_gauss=number(body, "k_gauss", 0, 1e5),
            k_cauchy=number(body, "k_cauchy", 0, 1e4),
            order=number(body, "order", 0.1, 2),
            heat_fall=number(body, "heat_fall", 0, 10),
            wave_time=number(body, "wave_time", 0, 1000),
            wave_damping=number(body, "wave_damping", 0, 10),
            have=found if isinstance(found := body.get("have"), dict) else {},
        )

    @property
    def keys(self) -> dict[str, str]:
        """What each view depends on, as a short key: a slider changes few of them."""
        of_tailprop = (self.lam, self.k_gauss, self.k_cauchy, self.order)
        settings: dict[str, tuple[float, ...]] = {
            "input": (),
            "spectrum_in": (),
            "tailprop": of_tailprop,
            "spectrum_out": of_tailprop,
            "gaussian": (self.k_gauss,),
            "cauchy": (self.k_cauchy, self.order),
            "heat": (self.k_gauss, self.heat_fall),
            "wave": (self.wave_time, self.wave_damping),
        }
        source = (self.size_px, self.image, self.impulses)
        return {name: hashlib.sha256(repr((source, values)).encode()).hexdigest()[:16] for name, values in settings.items()}

    @property
    def missing(self) -> list[str]:
        """The views that the page does not show yet."""
        return [name for name, key in self.keys.items() if self.have.get(name) != key]

    @property
    def operators(self) -> dict[str, Apply]:
        """Each operator as a function of a channels-last map, or of a signal (1, N, 1)."""
        return {
            "tailprop": lambda x: tail_propagate(x, (self.k_gauss, self.k_cauchy), (self.lam, 1 - self.lam), (2.0, self.order)),
            "gaussian": lambda x: tail_propagate(x, (self.k_gauss,), (1.0,), (2.0,)),
            "cauchy": lambda x: tail_propagate(x, (self.k_cauchy,), (1.0,), (self.order,)),
            "heat": self._heat,
            "wave": self._wave,
        }

    def _heat(self, x: Tensor) -> Tensor:
        """vHeat's conduction with a diffusivity that falls with the frequency, as its network may learn it."""
        grid = frequency_grid_of(x)
        return heat_conduct(x, (self.k_gauss / (1 + self.heat_fall * grid.sqrt()))[..., None])

    def _wave(self, x: Tensor) -> Tensor:
        """WaveFormer's damped wave at one time, over its gain of the mean, so that brightness stays."""
        now, damping = x.new_full((), self.wave_time), x.new_full((), self.wave_damping)

        def propagate(y: Tensor) -> Tensor:
            return wave_propagate(y, now.expand(*y.shape[1:-1], 1), x.new_ones(()), damping)

        gain = propagate(x.new_ones(1, 1, 1, 1))
        return propagate(x) / gain.view([1] * x.ndim)


def frequency_grid_of(x: Tensor) -> Tensor:
    """rho of the coefficients of a map (1, H, W, C) or a signal (1, N, C)."""
    if x.ndim == 3:
        return (math.pi / x.shape[1] * torch.arange(x.shape[1], dtype=x.dtype)).square()
    return frequency_grid(x.shape[1], x.shape[2], x)


@torch.inference_mode()
def compute(
    ask: Propagation, photos: Photographs, check: Callable[[], None] = lambda: None
) -> tuple[dict[str, Any], dict[str, Bytes]]:
    """Numbers and images of the views that the page does not show yet. `check` raises once nobody waits for them."""
    x, missing = _input(ask, photos), set(ask.missing)  # (1, H, W, C)
    shown = _as_image if ask.image else _as_decades
    images, curves, profiles = {}, {}, {}
    for name, apply in ask.operators.items():
        if name not in missing:
            continue
        check()
        y = apply(x)
        images[name] = shown(y)
        curves[name] = _response(apply)
        profiles[name] = _profile(apply)
        if name == "tailprop":
            images["spectrum_out"] = _spectrum(y, x)
    check()
    images |= {
        name: make()
        for name, make in (("input", lambda: shown(x)), ("spectrum_in", lambda: _spectrum(x, x)))
        if name in missing
    }
    numbers = {
        "keys": ask.keys,
        "frequencies": (np.arange(FREQUENCIES) * math.pi / FREQUENCIES).tolist(),
        "responses": curves,
        "distances": list(range(PROFILE_PX // 2 + 1)),
        "profiles": profiles,
    }
    return numbers, images


def _input(ask: Propagation, photos: Photographs) -> Tensor:
    """The image or the impulses, (1, H, W, C)."""
    if ask.image:
        image = photos.get(ask.image).rgb
        scale = ask.size_px / max(image.size)
        w, h = (max(2, round(scale * length)) for length in image.size)
        pixels = np.asarray(image.resize((w, h), Image.Resampling.BICUBIC, reducing_gap=2.0), dtype=np.float32) / 255
        return torch.from_numpy(pixels)[None]
    side = ask.size_px
    x = torch.zeros(1, side, side, 1)
    for across, down in ask.impulses:
        x[0, min(side - 1, int(down * side)), min(side - 1, int(across * side))] = 1
    return x


def _as_image(x: Tensor) -> Bytes:
    return (x[0].clamp(0, 1) * 255).round().to(torch.uint8).numpy()


def _as_decades(x: Tensor) -> Bytes:
    """The size of a response over its peak on a log scale, in colours."""
    size = x[0, ..., 0].abs()
    return magma(_decades(size, size.max()))


def _decades(size: Tensor, peak: Tensor) -> Array:
    """log10 over the peak, from 0 at 10^-DECADES to 1 at the peak."""
    return (1 + (size / peak.clamp_min(1e-30)).clamp_min(10.0 ** -(DECADES + 1)).log10() / DECADES).clamp(0, 1).numpy()


def _spectrum(x: Tensor, reference: Tensor) -> Bytes:
    """The size of the DCT on a log scale, over the largest coefficient of the reference that is not its mean."""
    both = dct2(torch.cat([x.mean(-1, keepdim=True), reference.mean(-1, keepdim=True)], dim=-1))[0].abs()  # (H, W, 2)
    both[0, 0] = 0
    return magma(_decades(both[..., 0], both[..., 1].max()))


def _response(apply: Apply) -> list[float]:
    """The factor of each frequency along an axis, (N,)."""
    flat = idct(torch.ones(1, FREQUENCIES, 1))
    return [round(factor, 6) for factor in dct(apply(flat))[0, :, 0].tolist()]


def _profile(apply: Apply) -> list[float]:
    """The kernel by the distance from an impulse in the middle of a map, mean over all directions, over its peak."""
    middle = PROFILE_PX // 2
    x = torch.zeros(1, PROFILE_PX, PROFILE_PX, 1)
    x[0, middle, middle] = 1
    kernel = apply(x)[0, ..., 0].double().flatten()
    distance = _distances().flatten()
    mean = (torch.bincount(distance, kernel) / torch.bincount(distance)).abs()[: middle + 1]
    return [float(f"{v:.4g}") for v in (mean / mean.max().clamp_min(1e-30)).tolist()]


@lru_cache(1)
def _distances() -> Tensor:
    """Distance from the middle of the map of a kernel, rounded to pixels."""
    away = torch.arange(PROFILE_PX) - PROFILE_PX // 2
    return (away[:, None].square() + away.square()).double().sqrt().round().long()
