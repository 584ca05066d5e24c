"""What `tailprop export` writes for a classifier: its logits, or the feature maps of its backbone."""

from collections.abc import Callable, Iterator
from dataclasses import asdict

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from tailprop.data.images import decode_image
from tailprop.engine.export import Exportable
from tailprop.engine.exported import Description
from tailprop.runtime.distributed import World
from tailprop.tasks.classify.augment import normalisation
from tailprop.tasks.classify.exported import ClassifyExport
from tailprop.tasks.classify.load import ImageClassifier, load_classifier
from tailprop.tasks.classify.task import Classification
from tailprop.tasks.common.export import (
    Maps,
    Part,
    as_inputs,
    check_sizes,
    classifier_maps,
    input_spec,
    least_px,
    provenance,
)

__all__ = ["IMAGENET", "create_export"]

IMAGENET = (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)


def create_export(checkpoint: str, part: Part, world: World) -> Exportable:
    """A classifier as `tailprop export` writes it."""
    found = load_classifier(checkpoint)
    if found.crop_mode not in (None, "center"):
        raise ValueError(f"{found.name} was trained with the crop mode {found.crop_mode}, which exported files do not have")
    settings = found.settings
    interpolation = "bicubic" if settings.augment.interpolation == "random" else settings.augment.interpolation
    mean, std = found.statistics or normalisation(settings.model.in_chans)
    network: nn.Module = found.model.float()
    if part == "features":
        network = Maps(classifier_maps(settings.model, found.model.state_dict()))
    count = len(network.body.feature_info.channels()) if isinstance(network, Maps) else 0  # type: ignore[operator, union-attr]
    about = Description(
        task="classify",
        architecture=found.name,
        input=input_spec(mean, std, least_px(found.model)),
        part=part,
        names=found.names,
        outputs=tuple(f"map_{i}" for i in range(count)) if count else ("logits",),
        settings=asdict(ClassifyExport(settings.data.size_px, settings.data.eval_resize_px, interpolation)),
        provenance=provenance(checkpoint),
    )
    measured = _Measured(found, world)
    return Exportable(
        network.eval(),
        about,
        check_sizes(settings.data.size_px),
        calibration=measured.calibration,
        evaluate=measured.evaluate if part == "network" else None,
    )


class _Measured:
    """The data of the run, opened when it is needed."""

    def __init__(self, found: ImageClassifier, world: World) -> None:
        self.found, self.world = found, world
        self._task: Classification | None = None

    @property
    def task(self) -> Classification:
        if self._task is None:
            self._task = Classification(self.found.settings, self.world)
        return self._task

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        return self.task.evaluate(network)

    def calibration(self, count: int) -> Iterator[Tensor]:
        source, transform, mode = self.task.sources["train"], self.found.transform(), self.found.mode
        make: Callable[[int], Tensor] = lambda index: transform(decode_image(source.read(index), mode))  # noqa: E731
        return as_inputs(make, len(source.labels), count)
