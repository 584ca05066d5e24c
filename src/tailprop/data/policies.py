"""timm's policies of augmentation: RandAugment, AutoAugment, AugMix."""

from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image, ImageOps
from timm.data import create_transform

__all__ = ["operations", "timm_policy"]


def timm_policy(name: str, side: int, mean: Sequence[float], interpolation: str) -> Callable[[Image.Image], Image.Image]:
    """What timm does between the crop and the tensor.

    Args:
        name: As timm spells it, for example rand-m9-mstd0.5-inc1.
        side: Of the crop, in pixels; how far a picture may be shifted depends on it.
        mean: Of each channel, 0 to 1: the colour of what comes into the picture at its edges.
        interpolation: As timm spells it.
    """
    try:
        whole = create_transform(
            side,
            is_training=True,
            hflip=0.0,
            color_jitter=None,
            auto_augment=name,
            interpolation=interpolation,
            mean=tuple(mean),
            normalize=False,
        )
    except (AssertionError, ValueError, KeyError, IndexError) as error:
        raise ValueError(f"timm does not understand augment.auto_augment {name!r}: {error}") from None
    _crop, policy, _to_tensor = whole.transforms
    for op in operations(policy):
        if op.name.startswith("Posterize"):  # timm may ask for 0 bits of a colour: black, until Pillow began to refuse it
            op.aug_fn = _posterize
    return policy


def operations(policy: Any) -> list[Any]:
    """The operations of a policy, whichever it is."""
    groups = [*getattr(policy, "policy", ()), getattr(policy, "ops", ()), getattr(policy, "augs", ())]
    return [op for group in groups for op in group if hasattr(op, "aug_fn")]


def _posterize(picture: Image.Image, bits: int, **_: Any) -> Image.Image:
    if bits >= 8:
        return picture
    return ImageOps.posterize(picture, bits) if bits > 0 else Image.new(picture.mode, picture.size)
