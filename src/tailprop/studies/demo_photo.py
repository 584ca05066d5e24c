"""The shipped denoiser on a photograph that it was not trained on.

The network is built from the settings in its weights, without the packages that reading and writing images of 16 bits needs.
"""

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from tailprop.engine.checkpoint import read_state_dict
from tailprop.engine.run_settings import find_settings, find_weights
from tailprop.tasks.common.look import COLORS, look, new_figure, set_title
from tailprop.tasks.common.models import load_weights
from tailprop.tasks.restore.model import create_restorer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_restored_photo", "load_denoiser", "noisy_photo", "psnr_of"]

MODEL: Final = "denoise"
SIGMA: Final = 25.0  # where white is 255
PHOTO_PX: Final = 288
DETAIL: Final = (slice(66, 130), slice(84, 148))  # an eye of the cat
Pixels = npt.NDArray[np.uint8]


def load_denoiser() -> nn.Module:
    """The shipped network, (B, 3, H, W) -> the same."""
    settings = find_settings(MODEL)
    assert settings is not None
    network: dict[str, Any] = settings["model"]
    weights = find_weights(MODEL)
    model = create_restorer(network["name"], network["in_chans"], **network["args"])
    return load_weights(model, weights, network["name"], read_state_dict(weights))


def noisy_photo() -> tuple[Tensor, Tensor]:
    """A clean photograph of scikit-image, and the same with noise: (1, 3, H, W), white at 1."""
    from skimage.data import chelsea

    photo = chelsea()[:PHOTO_PX, 80 : 80 + PHOTO_PX].copy()
    clean = torch.from_numpy(photo).permute(2, 0, 1)[None].float() / 255
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    return clean, clean + SIGMA / 255 * noise


@look()
def draw_restored_photo() -> tuple[Figure, float]:
    """Noisy, restored and clean, with a detail of each; and the PSNR of the restored photograph."""
    clean, noisy = noisy_photo()
    with torch.inference_mode():
        restored = load_denoiser()(noisy)
    figure = new_figure(9.6, 6.6)
    panels = figure.subplots(2, 3)
    for column, (title, image) in enumerate((("noisy", noisy), ("restored", restored), ("clean", clean))):
        pixels = _pixels(image)
        decibels = "" if image is clean else f", {psnr_of(image, clean):.2f} dB"
        _show(panels[0, column], pixels, f"{title}{decibels}")
        _frame(panels[0, column])
        _show(panels[1, column], pixels[DETAIL], "")
    set_title(figure, f"The shipped model {MODEL}: noise of sigma {SIGMA:g}, which it is not told")
    return figure, psnr_of(restored, clean)


def psnr_of(image: Tensor, clean: Tensor) -> float:
    """PSNR in dB of an image that is neither clipped nor rounded."""
    return -10 * float(torch.log10((image - clean).double().square().mean()))


def _pixels(image: Tensor) -> Pixels:
    return np.asarray((image[0].clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())


def _show(axes: "Axes", pixels: Pixels, title: str) -> None:
    axes.imshow(pixels, interpolation="nearest")
    axes.set_title(title)
    axes.axis("off")


def _frame(axes: "Axes") -> None:
    from matplotlib.patches import Rectangle

    rows, columns = DETAIL
    corner, sides = (columns.start, rows.start), (columns.stop - columns.start, rows.stop - rows.start)
    axes.add_patch(Rectangle(corner, *sides, fill=False, edgecolor=COLORS[4], linewidth=1.2))
