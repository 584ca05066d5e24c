"""Trained networks as the figures see them: stages of layers, the input of every operator, and a copy before training.

Shapes: B batch, H height, W width, C channels.
"""

import copy
import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from tailprop.backbone.model import MIN_SIZE_PX, TPOLayer
from tailprop.backbone.operator import TailPropagation
from tailprop.backbone.registry import MODELS
from tailprop.runtime.rng import seeded
from tailprop.tasks import find_spec, load
from tailprop.tasks.common.figures import dataset_name
from tailprop.tasks.common.predictor import to_pil, to_tensor
from tailprop.tasks.reach.data import to_input
from tailprop.tasks.reach.photos import crop_photo
from tailprop.tasks.restore.model import RESTORERS

__all__ = ["LayerInput", "Network", "batches", "load_network", "untrained"]

MIXER_TITLES: Final = {
    "attention": "self-attention",
    "heat": "heat (vHeat)",
    "wave": "wave (WaveFormer)",
    "tailprop": "TailProp",
    "multiscale": "TailProp, multiscale",
}
_LARGEST_PX: Final = 256  # default size for tasks whose images are larger
Prepare = Callable[[Image.Image, int], tuple[Tensor, Image.Image]]
LayerInput = Callable[[int, int, TailPropagation, Tensor], None]  # stage, layer (both from 0), operator, its input (B, H, W, C)


@dataclass(frozen=True)
class Network:
    """A network in evaluation mode, and what its run says about it."""

    path: str
    model: str  # timm's name
    mixer: str
    data: str  # dataset and image size
    score: str  # of its best epoch; empty if the run is not known
    size_px: int
    trunk: nn.Module  # what the layers belong to, without the head of a task
    prepare: Prepare  # image, number -> input (C, H, W), what is shown of it

    @property
    def title(self) -> str:
        return MIXER_TITLES.get(self.mixer, self.mixer)

    @property
    def label(self) -> str:
        """Model, data and score in one line, for titles."""
        model = self.model if self.mixer == MODELS.get(self.model, {}).get("mixer") else f"{self.model} with {self.mixer}"
        return ", ".join(part for part in (model, self.data, self.score) if part)

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
    return Network(**{**network.__dict__, "trunk": trunk.eval()})


def load_network(where: str, size_px: int | None = None) -> Network:
    """Load a checkpoint of any task; raises for one without layers of this package."""
    predictor = load(where)
    settings = predictor.settings
    trunk = _find_trunk(predictor.model)
    if trunk is None:
        raise ValueError(
            f"{where} is a {settings.model.name}, which has no layers of this package, so there is no tail propagation to "
            "draw; give a checkpoint of a TailProp network"
        )
    size = size_px or _default_size(settings)
    if size < MIN_SIZE_PX and settings.task != "reach":
        raise ValueError(f"--size-px must be at least {MIN_SIZE_PX}, got {size}")
    return Network(
        path=where,
        model=settings.model.name,
        mixer=_mixer(settings.model),
        data=_data(settings.data, size),
        score=_score(Path(where), settings.task),
        size_px=size,
        trunk=trunk,
        prepare=_preparation(predictor, size, size_px),
    )


def _find_trunk(model: nn.Module) -> nn.Module | None:
    """The innermost network around the layers: a backbone inside a detector or segmenter, or the model itself."""
    for module in model.modules():
        if callable(getattr(module, "init_weights", None)) and any(isinstance(m, TPOLayer) for m in module.modules()):
            return module
    return None


def _default_size(settings: Any) -> int:
    data = settings.data
    return int(getattr(data, "size_px", 0) or min(_LARGEST_PX, getattr(data, "short_px", _LARGEST_PX)))


def _mixer(model: Any) -> str:
    known = MODELS.get(model.name) or RESTORERS.get(model.name) or {}
    return str(model.args.get("mixer", known.get("mixer", "tailprop")))


def _data(data: Any, size: int) -> str:
    """Dataset and image size, and the size of the figure's images if that is another."""
    trained = getattr(data, "size_px", None) or getattr(data, "short_px", None) or getattr(data, "crop_px", size)
    return f"{dataset_name(data)} at {trained} px" + (f", drawn at {size} px" if size != trained else "")


def _score(where: Path, task: str) -> str:
    """The metric of the best epoch, from the table of a run folder."""
    spec = find_spec(task)
    history = (where if where.is_dir() else where.parent) / "history.csv"
    if not history.is_file():
        return ""
    with history.open(newline="") as file:
        values = [float(row[spec.metric]) for row in csv.DictReader(file) if row.get(spec.metric)]
    name, _, unit = spec.metrics[spec.metric].partition(", ")
    return f"{name} {max(values):.1f} {unit}".strip() if values else ""


def _preparation(predictor: Any, size: int, size_px: int | None) -> Prepare:
    task, model = predictor.settings.task, predictor.settings.model
    if task == "classify":
        transform = predictor.transform(predictor.settings.data.at_size(size_px))
        return lambda image, _number: (transform(to_pil(image, predictor.mode)), _square(image, size))
    if task == "reach":
        return _posed(predictor.problem, size)
    return _unit_range(model.in_chans, size) if task == "restore" else _normalised(size)


def _posed(problem: Any, size: int) -> Prepare:
    def prepare(image: Image.Image, number: int) -> tuple[Tensor, Image.Image]:
        rng = np.random.default_rng([1, number])
        picture = problem.make(rng, size, crop_photo(image, size, None)).picture
        return to_input(problem, picture), Image.fromarray(picture)

    return prepare


def _unit_range(channels: int, size: int) -> Prepare:
    def prepare(image: Image.Image, _number: int) -> tuple[Tensor, Image.Image]:
        shown = _square(image.convert("L" if channels == 1 else "RGB"), size)
        tensor = to_tensor(shown) if channels > 1 else torch.from_numpy(np.array(shown))[None]
        return tensor.float() / 255, shown

    return prepare


def _normalised(size: int) -> Prepare:
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD))

    def prepare(image: Image.Image, _number: int) -> tuple[Tensor, Image.Image]:
        shown = _square(image.convert("RGB"), size)
        return (to_tensor(shown).float() / 255 - mean) / std, shown

    return prepare


def _square(image: Image.Image, size: int) -> Image.Image:
    """The central square of an image."""
    side = min(image.size)
    left, top = ((length - side) // 2 for length in image.size)
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)


def batches(inputs: Sequence[Tensor], size: int = 16) -> Iterator[Tensor]:
    """Inputs of one size as batches (B, C, H, W)."""
    for first in range(0, len(inputs), size):
        yield torch.stack(list(inputs[first : first + size]))
