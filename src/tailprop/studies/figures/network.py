"""Trained networks as the figures see them: stages of layers, the input of every operator, and a copy before training.

Shapes: B batch, H height, W width, C channels.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from tailprop.backbone.model import TPOLayer
from tailprop.backbone.operator import TailPropagation
from tailprop.backbone.registry import MODELS
from tailprop.engine.run_folder import RunFolder
from tailprop.runtime.rng import seeded
from tailprop.studies.figures.checkpoints import load_predictor
from tailprop.studies.figures.prepare import Prepare, preparation
from tailprop.tasks import find_spec
from tailprop.tasks.common.figures import dataset_name
from tailprop.tasks.restore.model import RESTORERS

__all__ = ["LayerInput", "Metric", "Network", "batches", "load_network", "untrained", "without_mixers"]

MIXER_TITLES: Final = {
    "attention": "self-attention",
    "heat": "heat (vHeat)",
    "wave": "wave (WaveFormer)",
    "tailprop": "TailProp",
    "multiscale": "TailProp, multiscale",
}
_LARGEST_PX: Final = 256  # default size for tasks whose images are larger
LayerInput = Callable[[int, int, TailPropagation, Tensor], None]  # stage, layer (both from 0), operator, its input (B, H, W, C)


@dataclass(frozen=True)
class Metric:
    """A measured value with its name and unit."""

    name: str
    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.1f} {self.unit}".strip()


@dataclass(frozen=True)
class Network:
    """A network in evaluation mode, and what its run says about it."""

    path: str
    model: str  # timm's name
    mixer: str
    dataset: str
    trained_px: int  # image size of its training
    metric: Metric | None  # of its best epoch; None if the run is not known
    size_px: int
    trunk: nn.Module  # what the layers belong to, without the head of a task
    preparation: Callable[[int], Prepare]  # by image size
    args: str = ""  # of the model
    seed: int | None = None  # of its run

    @property
    def title(self) -> str:
        return MIXER_TITLES.get(self.mixer, self.mixer)

    @property
    def score(self) -> str:
        return "" if self.metric is None else str(self.metric)

    @property
    def subject(self) -> str:
        """Model and data, for titles."""
        model = self.model if self.mixer == MODELS.get(self.model, {}).get("mixer") else f"{self.model} with {self.mixer}"
        return f"{model}, {self.data}"

    @property
    def label(self) -> str:
        """Model, data and score in one line, for titles."""
        return ", ".join(part for part in (self.subject, self.score) if part)

    def is_seed_of(self, other: "Network") -> bool:
        """Whether two runs differ in nothing but their seed, as far as figures know."""
        return (self.model, self.args, self.data) == (other.model, other.args, other.data)

    @property
    def data(self) -> str:
        """Dataset and image size, and the size of the figure's images if that is another."""
        drawn = f", drawn at {self.size_px} px" if self.size_px != self.trained_px else ""
        return f"{self.dataset} at {self.trained_px} px{drawn}"

    @cached_property
    def prepare(self) -> Prepare:
        return self.preparation(self.size_px)

    def at_least(self, size_px: int) -> "Network":
        """The same network for images of at least this size."""
        return replace(self, size_px=max(size_px, self.size_px))

    @property
    def stages(self) -> list[list[TPOLayer]]:
        """The layers of each stage: lists of layers, in the order in which the network has them."""
        lists = (module for module in self.trunk.modules() if isinstance(module, nn.ModuleList))
        found = [[layer for layer in layers if isinstance(layer, TPOLayer)] for layers in lists]
        return [stage for stage in found if stage]

    @property
    def operators(self) -> list[list[TailPropagation]]:
        """The tail propagation operators of each stage; empty lists for a network with another mixer."""
        mixers = ([layer.block.mixer for layer in stage] for stage in self.stages)
        return [[mixer for mixer in stage if isinstance(mixer, TailPropagation)] for stage in mixers]

    @property
    def has_operators(self) -> bool:
        return any(self.operators)

    def require_operators(self, figure: str) -> None:
        if not self.has_operators:
            raise ValueError(
                f"{self.path} has no tail propagation operator (its mixer is {self.mixer}), so there is nothing to draw for "
                f"{figure}; give a checkpoint of a TailProp network"
            )

    def run(self, x: Tensor) -> Tensor:
        """The last feature map before norm and head, (B, 3, H, W) -> (B, h, w, C)."""
        kept: list[Tensor] = []
        handle = self.stages[-1][-1].register_forward_hook(lambda _module, _given, y: kept.append(y))
        try:
            getattr(self.trunk, "forward_features", self.trunk)(x)
        finally:
            handle.remove()
        return kept[-1]

    @torch.no_grad()
    def visit(self, x: Tensor, visit: LayerInput) -> None:
        """Run the network on a batch, and call `visit` with every operator and its input."""
        with self._hooks(visit):
            self.run(x)

    @contextmanager
    def _hooks(self, visit: LayerInput) -> Iterator[None]:
        handles = []
        for i, stage in enumerate(self.operators):
            for j, operator in enumerate(stage):

                def hook(module: nn.Module, given: Any, i: int = i, j: int = j) -> None:
                    assert isinstance(module, TailPropagation)
                    visit(i, j, module, given[0])

                handles.append(operator.register_forward_pre_hook(hook))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def untrained(network: Network, seed: int = 0) -> Network:
    """The same architecture with initial weights."""
    trunk = copy.deepcopy(network.trunk)
    with seeded(seed):
        trunk.init_weights()  # type: ignore[operator]
    return replace(network, trunk=trunk.eval())


class _Identity(nn.Module):
    def forward(self, x: Tensor, *_embedding: Tensor) -> Tensor:
        return x


def without_mixers(network: Network) -> Network:
    """The same weights with the identity in place of every mixer: what the convolutions reach by themselves."""
    changed = replace(network, trunk=copy.deepcopy(network.trunk))
    for layer in (layer for stage in changed.stages for layer in stage):
        layer.block.mixer = _Identity()
    return changed


def load_network(where: str, size_px: int | None = None, model: str | None = None) -> Network:
    """Load a checkpoint of any task; raises for one without layers of this package."""
    predictor = load_predictor(where, model)
    settings = predictor.settings
    trunk = _find_trunk(predictor.model)
    if trunk is None:
        raise ValueError(
            f"{where} is a {settings.model.name}, which has no layers of this package, so there is no tail propagation to "
            "draw; give a checkpoint of a TailProp network"
        )
    size = size_px or _default_size(settings.data)
    return Network(
        path=where,
        model=settings.model.name,
        mixer=_mixer(settings.model),
        dataset=dataset_name(settings.data),
        trained_px=_trained_size(settings.data) or size,
        metric=_best(Path(where), settings.task),
        size_px=size,
        trunk=trunk,
        preparation=preparation(predictor),
        args=repr(sorted(settings.model.args.items())),
        seed=settings.run.seed,
    )


def _find_trunk(model: nn.Module) -> nn.Module | None:
    """The innermost network around the layers: a backbone inside a detector or segmenter, or the model itself."""
    for module in model.modules():
        if callable(getattr(module, "init_weights", None)) and any(isinstance(m, TPOLayer) for m in module.modules()):
            return module
    return None


def _trained_size(data: Any) -> int:
    """The image size of a run; 0 if it has none."""
    sizes = (getattr(data, name, None) for name in ("size_px", "crop_px", "short_px"))
    return int(next((size for size in sizes if size), 0))


def _default_size(data: Any) -> int:
    """The image size of a run; for tasks that measure whole images, one that is quick to draw."""
    return int(getattr(data, "size_px", 0) or min(_LARGEST_PX, getattr(data, "short_px", _LARGEST_PX)))


def _mixer(model: Any) -> str:
    known = MODELS.get(model.name) or RESTORERS.get(model.name) or {}
    return str(model.args.get("mixer", known.get("mixer", "tailprop")))


def _best(where: Path, task: str) -> Metric | None:
    """The metric of the best epoch, from the log of a run folder, whose lines are verified."""
    spec = find_spec(task)
    rows = RunFolder(where if where.is_dir() else where.parent).read_log()
    found = [row.get(spec.metric) for row in rows if row["kind"] == "epoch"]
    values = [float(value) for value in found if isinstance(value, int | float) and math.isfinite(value)]
    name, _, unit = spec.metrics[spec.metric].partition(", ")
    return Metric(name, max(values), unit) if values else None


def batches(inputs: Sequence[Tensor], size: int = 16) -> Iterator[Tensor]:
    """Inputs of one size as batches (B, C, H, W)."""
    for first in range(0, len(inputs), size):
        yield torch.stack(list(inputs[first : first + size]))
