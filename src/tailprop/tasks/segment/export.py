"""What `tailprop export` writes for a segmenter: logits of every pixel, or the feature maps of its backbone."""

import copy
from collections.abc import Iterator
from dataclasses import asdict

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from tailprop.engine.export import Exportable
from tailprop.engine.exported import Description
from tailprop.runtime.distributed import World
from tailprop.tasks.common.export import Maps, Part, check_sizes, input_spec, least_px, provenance
from tailprop.tasks.segment.data import normalise
from tailprop.tasks.segment.exported import SegmentExport
from tailprop.tasks.segment.load import ImageSegmenter, load_segmenter
from tailprop.tasks.segment.model import Segmenter
from tailprop.tasks.segment.task import Segmentation

__all__ = ["AdaptivePool", "create_export"]


class AdaptivePool(nn.Module):
    """Adaptive average pooling as two products, (B, C, H, W) -> (B, C, n, n).

    PyTorch's chooses its windows by the size of the map, so exporters refuse it for a size that is not known. A window of n
    covers the positions from floor(i H / n) to ceil((i + 1) H / n).
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = self._windows(x.shape[2], x), self._windows(x.shape[3], x)
        return torch.matmul(torch.matmul(rows, x), columns.transpose(0, 1))

    def _windows(self, n: int, like: Tensor) -> Tensor:  # (count, n): the mean of every window
        i = torch.arange(self.count, device=like.device)[:, None]
        begin, end = i * n // self.count, ((i + 1) * n + self.count - 1) // self.count
        at = torch.arange(n, device=like.device)
        inside = ((at >= begin) & (at < end)).to(like.dtype)
        return inside / inside.sum(1, keepdim=True)


def create_export(checkpoint: str, part: Part, world: World) -> Exportable:
    """A segmenter as `tailprop export` writes it."""
    found = load_segmenter(checkpoint)
    settings = found.settings
    model = found.model
    assert isinstance(model, Segmenter)
    network: nn.Module = Maps(model.backbone) if part == "features" else with_free_pools(model.float())
    about = Description(
        task="segment",
        architecture=settings.model.name,
        input=input_spec(IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, least_px(model)),
        part=part,
        names=found.names,
        outputs=tuple(f"map_{i}" for i in range(4)) if part == "features" else ("logits",),
        settings=asdict(_settings(found)),
        provenance=provenance(checkpoint),
    )

    def evaluate(candidate: nn.Module) -> dict[str, float]:
        return Segmentation(settings, world).evaluate(candidate)

    def calibration(count: int) -> Iterator[Tensor]:
        images = (image for batch in Segmentation(settings, world).batches(0, 0) for image in batch.images)
        return (normalise(image[None]) for image, _ in zip(images, range(count), strict=False))

    return Exportable(
        network.eval(),
        about,
        check_sizes(96),
        calibration=calibration,
        evaluate=evaluate if part == "network" else None,
    )


def _settings(found: ImageSegmenter) -> SegmentExport:
    data, colors = found.settings.data, found.colors
    return SegmentExport(
        data.short_px,
        data.long_px,
        found.settings.inference,
        found.first_label,
        () if colors is None else colors.colors,
        () if colors is None else colors.ignored,
    )


def with_free_pools(model: Segmenter) -> Segmenter:
    """A copy whose adaptive pools take maps of any size."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.AdaptiveAvgPool2d) and isinstance(child.output_size, int):
                setattr(module, name, AdaptivePool(child.output_size))
    return model
