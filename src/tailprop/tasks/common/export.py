"""Code that the tasks share to describe what `tailprop export` writes."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import timm
from torch import Tensor, nn

from tailprop.backbone.model import MIN_SIZE_PX, TailProp
from tailprop.engine.config import ModelConfig
from tailprop.engine.exported import InputSpec
from tailprop.engine.run_folder import RunFolder
from tailprop.tasks.common.models import create, model_arguments

__all__ = ["Maps", "Part", "as_inputs", "check_sizes", "classifier_maps", "input_spec", "least_px", "provenance", "spread"]

Part = Literal["network", "features"]
_KEPT: Final = ("command", "commit", "tailprop", "started", "parameters", "macs")  # entries of a manifest


class Maps(nn.Module):
    """A backbone's feature maps as a tuple."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = self.body(x)
        return tuple(found.values() if isinstance(found, dict) else found)


def classifier_maps(config: ModelConfig, state: dict[str, Tensor]) -> nn.Module:
    """The feature maps of a classifier, with its weights."""
    settings = model_arguments(config)
    make = lambda: timm.create_model(  # noqa: E731 - it is one expression
        config.name, features_only=True, feature_cls="getter", in_chans=config.in_chans, **settings
    )
    body = create(f"the feature maps of {config.name}", make)
    missing, _ = body.model.load_state_dict(state, strict=False)
    if missing:
        raise ValueError(f"the feature maps of {config.name} have other parameters than its classifier, such as {missing[0]}")
    return body.eval()


def least_px(network: nn.Module) -> int:
    """The smallest side that a network takes, as far as it is known."""
    return MIN_SIZE_PX if any(isinstance(module, TailProp) for module in network.modules()) else 1


def check_sizes(side: int) -> tuple[tuple[int, int], ...]:
    """Sizes that an exported file is checked at: one that is not square, an odd one, and that of the run."""
    side = max(64, min(side, 256))
    return (side + 8, side + 24), (side // 2 * 2 + 1, side + 3), (side, side)


def input_spec(mean: Sequence[float], std: Sequence[float], least: int) -> InputSpec:
    return InputSpec(len(mean), tuple(map(float, mean)), tuple(map(float, std)), least)


def provenance(checkpoint: str | Path) -> dict[str, Any]:
    """Where a network comes from, by the manifest of its run; empty if it has none."""
    path = Path(checkpoint)
    folder = path if path.is_dir() else path.parent
    manifest = RunFolder(folder).read_manifest() if (folder / "manifest.json").is_file() else {}
    return {name: manifest[name] for name in _KEPT if name in manifest}


def spread(count: int, total: int) -> Iterator[int]:
    """`count` indices, evenly spaced over `total`."""
    count = min(count, total)
    return (index * total // count for index in range(count))


def as_inputs(make: Callable[[int], Tensor | None], total: int, count: int) -> Iterator[Tensor]:
    """Calibration inputs (1, C, H, W) of evenly spaced training images, without those that cannot be read."""
    for index in spread(count, total):
        x = make(index)
        if x is not None:
            yield x if x.ndim == 4 else x[None]
