"""What `tailprop export` writes for a detector: its backbone and feature pyramid, or the backbone alone."""

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import nn

from tailprop.engine.export import Exportable
from tailprop.engine.exported import Description
from tailprop.runtime.distributed import World
from tailprop.tasks.common.export import Maps, Part, check_sizes, input_spec, least_px, provenance
from tailprop.tasks.detect.load import load_detector

__all__ = ["create_export"]

WHY = (
    "backbone and feature pyramid only: torchvision's heads keep as many regions as an image has, in loops over images and "
    "levels that torch.export cannot capture"
)


def create_export(checkpoint: str, part: Part, world: World) -> Exportable:  # noqa: ARG001 - the interface of all tasks
    """A detector's maps as `tailprop export` writes them: its five levels, or the four maps of its backbone."""
    found = load_detector(checkpoint)
    pyramid = found.detector.backbone.float()
    network: nn.Module = Maps(pyramid.body if part == "features" else pyramid)
    count = 4 if part == "features" else 5
    about = Description(
        task="detect",
        architecture=found.settings.model.name,
        input=input_spec(IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, least_px(pyramid)),
        part="features" if part == "features" else "pyramid",
        names=found.names,
        outputs=tuple(f"map_{i}" for i in range(count)),
        settings={"category_ids": list(found.category_ids)},
        provenance=provenance(checkpoint),
    )
    return Exportable(network.eval(), about, check_sizes(96), note="" if part == "features" else WHY)
