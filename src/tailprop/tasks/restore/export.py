"""What `tailprop export` writes for a restorer: the whole network."""

from collections.abc import Iterator
from dataclasses import asdict

from torch import Tensor, nn

from tailprop.engine.export import Exportable
from tailprop.engine.exported import Description
from tailprop.runtime.distributed import World
from tailprop.tasks.common.export import Part, input_spec, provenance
from tailprop.tasks.restore.exported import RestoreExport
from tailprop.tasks.restore.load import load_restorer
from tailprop.tasks.restore.task import Restoration

__all__ = ["create_export"]

_SIZES = ((48, 72), (65, 43), (64, 64))


def create_export(checkpoint: str, part: Part, world: World) -> Exportable:
    """A restorer as `tailprop export` writes it."""
    if part != "network":
        raise ValueError("a restorer has no feature maps at several scales; leave --features out")
    found = load_restorer(checkpoint)
    chans, grid = found.in_chans, int(getattr(found.model, "grid_px", 1))
    about = Description(
        task="restore",
        architecture=found.name,
        input=input_spec((0.0,) * chans, (1.0,) * chans, 1),
        outputs=("restored",),
        settings=asdict(RestoreExport(found.scale, grid)),
        provenance=provenance(checkpoint),
    )

    def evaluate(network: nn.Module) -> dict[str, float]:
        return Restoration(found.settings, world).evaluate(network)

    def calibration(count: int) -> Iterator[Tensor]:
        crops = (crop for batch in Restoration(found.settings, world).batches(0, 0) for crop in batch.degraded)
        return (crop[None] for crop, _ in zip(crops, range(count), strict=False))

    return Exportable(found.model.float().eval(), about, _SIZES, calibration=calibration, evaluate=evaluate)
