"""The Python interface for predictions."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from tailprop.data.broken import Broken
from tailprop.data.images import decode_image, read_image
from tailprop.engine.config import TaskConfig

__all__ = [
    "ImageInput",
    "Predictor",
    "as_list",
    "check_unit_range",
    "to_pil",
    "to_tensor",
]

ImageInput = str | Path | Image.Image | np.ndarray | Tensor
C = TypeVar("C", bound=TaskConfig)
R = TypeVar("R")


@dataclass(frozen=True)
class Predictor(Generic[C, R]):
    """A model in evaluation mode, with the settings of its run and its class names."""

    model: nn.Module  # the network, in evaluation mode
    settings: C  # settings of its run
    names: tuple[str, ...]  # class names, by class index

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def predict(self, images: ImageInput | Sequence[ImageInput], precision: str = "fp32") -> Any:
        """The prediction for an image, or a list of predictions for a list of images.

        Args:
            images: A path, a PIL image, an array (H, W) or (H, W, C), a tensor (C, H, W), or a list of them. Values
                are bytes, or floats from 0 to 1.
            precision: Autocast dtype: fp32, bf16 or fp16.
        """
        given, is_list = as_list(images)
        predictions = self.predict_all(given, precision)
        return predictions if is_list else predictions[0]

    @abstractmethod
    def predict_all(self, images: Sequence[ImageInput], precision: str) -> list[R]: ...


def as_list(images: ImageInput | Sequence[ImageInput]) -> tuple[list[ImageInput], bool]:
    """The images as a list, and whether several were given; a 4-dimensional tensor or array is a list of images."""
    if isinstance(images, Tensor | np.ndarray):
        return (list(images), True) if images.ndim == 4 else ([images], False)
    if isinstance(images, str | Path | Image.Image):
        return [images], False
    if not isinstance(images, Sequence):
        raise ValueError(f"expected a path, a PIL image, an array, a tensor or a list of them, got {type(images).__name__}")
    return list(images), True


def to_pil(image: ImageInput, mode: str) -> Image.Image:
    """Convert any image input to a PIL image of this mode; a file that cannot be read raises an error with its name."""
    if isinstance(image, str | Path):
        read = read_image(Path(image), mode)
        if isinstance(read, Broken):
            raise ValueError(str(read))
        return read
    if isinstance(image, Image.Image):
        return decode_image(image, mode)
    return Image.fromarray(_to_bytes(to_array(image))).convert(mode)


def to_array(image: np.ndarray | Tensor) -> np.ndarray:
    """Convert a tensor (C, H, W), or check an array; returns an array (H, W) or (H, W, C)."""
    if isinstance(image, Tensor):
        if image.ndim not in (2, 3):
            raise ValueError(f"an image tensor must be (channels, height, width), got {tuple(image.shape)}")
        image = image.detach().cpu().float().numpy() if image.is_floating_point() else image.cpu().numpy()
        image = np.moveaxis(image, 0, -1) if image.ndim == 3 else image
    if image.ndim not in (2, 3):
        raise ValueError(f"an image array must be (height, width) or (height, width, channels), got {image.shape}")
    if image.ndim == 3 and image.shape[2] > 4:
        raise ValueError(
            f"an image has 1 to 4 channels, got {image.shape[2]}; a tensor is (channels, height, width), an array (height, "
            "width, channels)"
        )
    return image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image


def check_unit_range(array: np.ndarray) -> None:
    """Raise if floats are not from 0 to 1, as in bytes converted to float or a normalised image."""
    if array.size and not (array.min() >= -1e-3 and array.max() <= 1 + 1e-3):  # NaN is refused too
        raise ValueError(f"a float image must have values from 0 to 1, got {array.min():.3g} to {array.max():.3g}")


def _to_bytes(array: np.ndarray) -> np.ndarray:
    if np.issubdtype(array.dtype, np.floating):
        check_unit_range(array)
        return np.clip(array * 255 + 0.5, 0, 255).astype(np.uint8)
    if array.dtype == np.uint16:
        return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 65535 = 257 * 255
    if array.dtype not in (np.uint8, np.bool_):
        raise ValueError(f"an image array must be uint8, uint16, bool, or float from 0 to 1, got {array.dtype}")
    return array


def to_tensor(image: Image.Image) -> Tensor:
    """An RGB image as a uint8 tensor, (3, H, W)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
