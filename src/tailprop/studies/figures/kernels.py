"""Gaussian and Cauchy kernels in space and frequency: why one tail is light and the other heavy."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from tailprop.backbone.operator import tail_propagate
from tailprop.studies.figures.inputs import Inputs, Picture, Tick
from tailprop.studies.figures.propagate import DECADES, mix_color
from tailprop.tasks.common.look import CAUCHY, GAUSSIAN, HIDDEN, color_bar, look, name_panels, new_figure

__all__ = ["cauchy_kernel", "draw", "gaussian_kernel", "kernel_frames", "outside"]

Array = npt.NDArray[np.float64]
LENGTH: Final = 4.0  # standard deviation of the Gaussian and half-width of the Cauchy kernel, positions
FRAMES: Final = 17  # of the animation, there; as many back
SIDE: Final = 129  # of its map
DISTANCE: Final = "distance, positions"
KERNEL: Final = "kernel, per position\u00b2"


def gaussian_kernel(r: Array, length: float = LENGTH) -> Array:
    """exp(-r^2 / (2 l^2)) / (2 pi l^2): the kernel of exp(-k rho) with k = l^2 / 2."""
    return np.exp(-(r**2) / (2 * length**2)) / (2 * np.pi * length**2)


def cauchy_kernel(r: Array, length: float = LENGTH) -> Array:
    """l / (2 pi (l^2 + r^2)^1.5): the kernel of exp(-k sqrt(rho)) with k = l."""
    return length / (2 * np.pi * (length**2 + r**2) ** 1.5)


def outside(r: Array, length: float = LENGTH) -> tuple[Array, Array]:
    """The share of each kernel's mass further away than r: exp(-r^2 / (2 l^2)) and l / sqrt(l^2 + r^2)."""
    return np.exp(-(r**2) / (2 * length**2)), length / np.sqrt(length**2 + r**2)


@look()
def draw(inputs: Inputs, tick: Tick) -> list[Picture]:  # noqa: ARG001 - every figure has the same signature
    figure = new_figure(9.2, 6.2)
    panels = figure.subplots(2, 2)
    r, w = np.geomspace(0.5, 128, 200), np.linspace(0, np.pi, 200)
    spectra = np.exp(-(LENGTH**2) / 2 * w**2), np.exp(-LENGTH * w)
    kernels = gaussian_kernel(r), cauchy_kernel(r)
    near = np.linspace(0, 16, 200)
    _pair(panels[0, 0], near, (gaussian_kernel(near), cauchy_kernel(near)), DISTANCE, KERNEL, "near the source")
    _pair(panels[0, 1], w, spectra, r"frequency $\sqrt{\rho}$, radians per position", "response", "in frequency")
    _pair(panels[1, 0], r, kernels, DISTANCE, KERNEL, "the tails, logarithmic")
    panels[1, 0].set(xscale="log", yscale="log", ylim=(1e-8, 2e-2), xlim=(0.5, 128))
    far = cauchy_kernel(r) * (r > 8)
    panels[1, 0].plot(r[far > 0], 1.6 * LENGTH / (2 * np.pi * r[far > 0] ** 3), ":", color=HIDDEN, label=r"$\propto r^{-3}$")
    panels[1, 0].legend()
    _pair(panels[1, 1], r, outside(r), DISTANCE, "share of the mass beyond", "what lies far away")
    panels[1, 1].set(xscale="log", xlim=(0.5, 128), ylim=(0, 1))
    _explain(panels)
    name_panels(panels.ravel().tolist())
    tick(0.3)
    frames = kernel_frames()
    tick(0.7)
    note = (
        f"A Gaussian of standard deviation {LENGTH:g} and a Cauchy kernel of half-width {LENGTH:g} positions. The Gaussian "
        "response is flat at frequency 0: every moment of its kernel exists, and its tail is light. The Cauchy response has a "
        "corner there: its kernel has no variance, and its tail falls only as the third power of the distance. The animation "
        "sweeps \u03bb from 0 (Cauchy) to 1 (Gaussian) and back."
    )
    return [Picture("kernels", "Gaussian and Cauchy kernels", note, figure, _rows(r, kernels, w, spectra), frames)]


def _pair(axes: Any, x: Array, pair: tuple[Array, Array], across: str, up: str, title: str) -> None:
    axes.plot(x, pair[0], color=GAUSSIAN, label="Gaussian")
    axes.plot(x, pair[1], "--", color=CAUCHY, label="Cauchy")
    axes.set(xlabel=across, ylabel=up, title=title)
    axes.grid()
    axes.legend()


def _explain(panels: Any) -> None:
    panels[0, 1].annotate(
        "a corner at 0: heavy tail",
        (0.06, 0.8),
        xytext=(0.75, 0.62),
        arrowprops=dict(arrowstyle="->", color=CAUCHY),
        color=CAUCHY,
        fontsize=9,
    )
    panels[0, 1].annotate(
        "flat at 0: light tail",
        (0.07, 0.97),
        xytext=(0.75, 0.8),
        arrowprops=dict(arrowstyle="->", color=GAUSSIAN),
        color=GAUSSIAN,
        fontsize=9,
    )
    beyond = [float(share) for share in outside(np.array(3 * LENGTH))]
    text = f"beyond {3 * LENGTH:g} positions:\nGaussian {100 * beyond[0]:.1f} %\nCauchy {100 * beyond[1]:.1f} %"
    panels[1, 1].axvline(3 * LENGTH, color=HIDDEN, linewidth=0.8)
    panels[1, 1].text(0.64, 0.42, text, transform=panels[1, 1].transAxes, fontsize=9)


def kernel_frames() -> list[Image.Image]:
    """Frames of an animation: the map of an impulse and its decay, lambda from 0 to 1 and back."""
    x = torch.zeros(1, SIDE, SIDE, 1, dtype=torch.float64)
    x[0, SIDE // 2, SIDE // 2] = 1.0
    scene, drawn = _Scene(SIDE // 2), []
    for lam in np.linspace(0, 1, FRAMES).tolist():
        y = tail_propagate(x, (LENGTH**2 / 2, LENGTH), (lam, 1 - lam))[0, ..., 0].numpy()
        drawn.append(scene.frame(y, lam))
    return [drawn[0]] * 4 + drawn + [drawn[-1]] * 4 + drawn[-2:0:-1]


def _steps() -> Any:
    """A few steps of the colour map for each decade: they read like contours, and an animation of them is a third as large."""
    from matplotlib import colormaps

    return colormaps["magma"].resampled(4 * DECADES)


class _Scene:
    """The figure of the animation; a frame changes its data, because laying it out again would take most of the time."""

    def __init__(self, half: int) -> None:
        self.half = half
        self.figure = new_figure(6.6, 3.0)
        self.left, right = self.figure.subplots(1, 2)
        extent = (-half, half, half, -half)
        self.image = self.left.imshow(np.zeros((2, 2)), cmap=_steps(), vmin=-DECADES, vmax=0, extent=extent)
        self.left.set(title="\u03bb = 0.00", xlabel="x, positions", ylabel="y, positions")
        color_bar(self.figure, self.image, self.left, "response / peak, log10")
        r, zero = np.arange(1.0, half + 1), np.zeros(1)
        right.loglog(r, gaussian_kernel(r) / gaussian_kernel(zero), ":", color=GAUSSIAN, label="Gaussian", linewidth=1)
        right.loglog(r, cauchy_kernel(r) / cauchy_kernel(zero), ":", color=CAUCHY, label="Cauchy", linewidth=1)
        (self.curve,) = right.loglog(r, np.ones_like(r), linewidth=2.2, label="mix", color=CAUCHY)
        right.set(xlabel=DISTANCE, ylabel="response / peak", ylim=(10.0**-DECADES, 1.5), xlim=(1, half))
        right.grid()
        self.legend = right.legend(loc="lower left").get_lines()[-1]
        self.figure.canvas.draw()
        self.figure.set_layout_engine("none")

    def frame(self, y: Array, lam: float) -> Image.Image:
        shares = np.maximum(y / y.max(), 10.0 ** -(DECADES + 1))
        self.image.set_data(np.log10(shares))
        self.left.set_title(f"\u03bb = {lam:.2f}")
        self.curve.set_ydata(shares[self.half, self.half + 1 :])
        for line in (self.curve, self.legend):
            line.set_color(mix_color(lam, (0, 1)))
        self.figure.canvas.draw()
        pixels = np.asarray(self.figure.canvas.buffer_rgba())  # type: ignore[attr-defined]
        return Image.fromarray(pixels[..., :3].copy())


def _rows(r: Array, kernels: Sequence[Array], w: Array, spectra: Sequence[Array]) -> list[dict[str, Any]]:
    rows = []
    for kind, x, pair in (("kernel by distance", r, kernels), ("response by frequency", w, spectra)):
        rows += [
            dict(kind=kind, x=f"{a:.6g}", gaussian=f"{g:.6g}", cauchy=f"{c:.6g}") for a, g, c in zip(x, *pair, strict=True)
        ]
    return rows
