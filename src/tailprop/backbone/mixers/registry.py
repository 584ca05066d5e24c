"""The interface of a mixer, and `MIXERS`, which holds every mixer by name."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from torch import Tensor, nn

from .._checks import check_choice
from ..operator import MULTISCALE, VARIANTS, TailPropagation

__all__ = ["MIXERS", "Mixer", "build_mixer", "register_mixer"]


class Mixer(Protocol):
    """The interface of a mixer, an `nn.Module` created as `Mixer(dim, **settings, device=..., dtype=...)`.

    Further attributes are optional: `no_decay`, names of parameters without weight decay; `scale_parameters`, names of
    propagation scales, which can have their own learning rate; `not_matrices`, names of parameters with the shape of a
    convolution's weight that are none, for Muon; `learned()`, tensors by name that are logged after every epoch;
    `observe(on)`, which lets `learned` include means of what is predicted from the images seen in between; and
    `needs_map_size`, whether the constructor takes a `map_size`, the (H, W) of the maps at spacing 1 for the image size that
    the backbone is created for.
    """

    spacing: float  # distance of neighbouring positions; below 1 where output_stride makes a map finer than usual
    needs_frequency_embedding: bool  # whether `forward` takes the stage's embedding, (H, W, C), as a second argument

    def __call__(self, x: Tensor, *embedding: Tensor) -> Tensor: ...  # (B, H, W, C) -> (B, H, W, C)


MIXERS: Final[dict[str, Callable[..., nn.Module]]] = {
    name: partial(TailPropagation, **settings) for name, settings in {**VARIANTS, "multiscale": MULTISCALE}.items()
}
M = TypeVar("M", bound=Callable[..., nn.Module])


def register_mixer(name: str) -> Callable[[M], M]:
    """Class decorator that registers a mixer under a name; it also takes a `functools.partial` of a class."""

    def register(mixer: M) -> M:
        if name in MIXERS:
            raise ValueError(f"a mixer {name!r} is already registered; choose another name")
        MIXERS[name] = mixer
        return mixer

    return register


def build_mixer(name: str, dim: int, map_size: tuple[int, int] | None = None, /, **settings: Any) -> nn.Module:
    """A mixer by name; settings override those of a variant. Only a mixer that `needs_map_size` is told the size."""
    check_choice("mixer", name, MIXERS)
    mixer = MIXERS[name]
    kind = mixer.func if isinstance(mixer, partial) else mixer
    if map_size is not None and getattr(kind, "needs_map_size", False):
        settings = {"map_size": map_size} | settings
    return mixer(dim, **settings)
