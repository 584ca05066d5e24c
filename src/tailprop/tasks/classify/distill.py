"""Distillation into a classifier (Hinton et al. 2015): it learns from labels and from a teacher that sees the same crops.

Nothing but the student is trained. timm's task for features learns a projection from the student's width to the teacher's,
which would have to be in every checkpoint; here features are compared by the similarities that they give the images of a batch
(Tung and Mori 2019), which have no width.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.data import ImageNetInfo
from torch import Tensor, nn

from tailprop.engine.config import ModelConfig
from tailprop.runtime.distributed import World, local_main_first
from tailprop.tasks.classify.augment import normalisation
from tailprop.tasks.classify.config import ClassifyConfig, DataConfig, DistillConfig
from tailprop.tasks.classify.load import ImageClassifier, load_classifier
from tailprop.tasks.common.classes import align_classes
from tailprop.tasks.common.hub import TIMM, initial_state

__all__ = ["Distillation", "create_distillation", "logit_loss", "similarity_loss"]


def create_distillation(config: ClassifyConfig, classes: Sequence[str], world: World) -> "Distillation | None":
    """Load the teacher; None without one."""
    where = config.distill.teacher
    if where is None:
        return None
    try:
        teacher = local_main_first(partial(_load, where), where.startswith(TIMM))  # one process of a node downloads
    except ValueError as error:
        raise ValueError(f"distill.teacher: {error}") from None
    return Distillation(config.distill, teacher, classes, config.model.in_chans, world.device)


def _load(where: str) -> ImageClassifier:
    if not where.startswith(TIMM):
        if not Path(where).exists():
            raise ValueError(f"{where} does not exist; name a run folder, a weights file, or timm:NAME")
        return load_classifier(where)
    name = where.removeprefix(TIMM)
    state, architecture = initial_state(ModelConfig(name, init=where))  # raises at once without a network
    about = timm.get_pretrained_cfg(name)
    assert about is not None
    model = timm.create_model(architecture, num_classes=about.num_classes)
    model.load_state_dict(state)
    settings = ClassifyConfig(model=ModelConfig(name), data=DataConfig(size_px=about.input_size[-1], crop_pct=about.crop_pct))
    return ImageClassifier(model, settings, _names(about.num_classes), (about.mean, about.std), about.crop_mode)


def _names(count: int) -> tuple[str, ...]:
    if count == 1000:
        return tuple(ImageNetInfo().index_to_description(i) for i in range(count))
    return tuple(map(str, range(count)))


class Distillation:
    """The teacher, and the loss of imitating it."""

    def __init__(
        self, config: DistillConfig, teacher: ImageClassifier, classes: Sequence[str], in_chans: int, device: torch.device
    ) -> None:
        self.config, self.teacher = config, teacher
        self.model = teacher.model.to(device).eval().requires_grad_(False)
        theirs = teacher.settings.model.in_chans
        if theirs != in_chans and 1 not in (theirs, in_chans):
            raise ValueError(f"distill.teacher takes {theirs} channels, and model.in_chans is {in_chans}; make them equal")
        self.in_chans, self.size_px = theirs, config.size_px or teacher.settings.data.size_px
        self.own = _statistics(normalisation(in_chans), device)
        self.theirs = _statistics(teacher.statistics or normalisation(theirs), device)
        self.index = torch.tensor(_match(classes, teacher), device=device) if config.kind == "logits" else None

    def describe(self) -> dict[str, Any]:
        """The teacher in the manifest."""
        return {
            "model": self.teacher.name,
            "from": self.config.teacher,
            "size_px": self.size_px,
            "weights_hash": _hash(self.model),
        }

    def run(self, student: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the student for normalised images, (B, K), and the loss of its imitation."""
        if self.index is not None:
            logits = student(images)
            with torch.no_grad():
                wanted = self.model(self._prepare(images))[:, self.index]
            return logits, logit_loss(logits[:, : len(self.index)], wanted, self.config.temperature)
        with _features(student) as own:
            logits = student(images)
        with torch.no_grad(), _features(self.model) as theirs:
            self.model(self._prepare(images))
        return logits, similarity_loss(own[0], theirs[0])

    def _prepare(self, images: Tensor) -> Tensor:  # (B, C, H, W) -> (B, C', size, size)
        """The images as the teacher was trained to see them: with its size, channels and normalisation."""
        images = images.detach() * self.own[1] + self.own[0]
        if images.shape[-1] != self.size_px:
            size = (self.size_px, self.size_px)
            images = F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)
        if images.shape[1] != self.in_chans:
            images = images.expand(-1, self.in_chans, -1, -1) if images.shape[1] == 1 else images.mean(1, keepdim=True)
        prepared = (images - self.theirs[0]) / self.theirs[1]
        return prepared.to(memory_format=torch.channels_last)


def logit_loss(logits: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """KL divergence of the softened probabilities times T^2, the loss of timm's LogitDistillationTask."""
    ours, theirs = (F.log_softmax(x.float() / temperature, dim=-1) for x in (logits, wanted))
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True) * temperature**2


def similarity_loss(features: Tensor, wanted: Tensor) -> Tensor:  # (B, C), (B, C') -> ()
    """Tung and Mori's loss: the mean squared distance of the rows of both similarity matrices, each row of length one."""
    ours, theirs = (_similarities(x.float()) for x in (features, wanted))
    return (ours - theirs).square().sum(dim=1).mean()


def _similarities(features: Tensor) -> Tensor:  # (B, C) -> (B, B)
    flat = features.flatten(1)
    return F.normalize(flat @ flat.T, dim=1)


@contextmanager
def _features(model: nn.Module) -> Iterator[list[Tensor]]:
    """What the classifier of a network is given. A hook reads it, so that DistributedDataParallel is called as usual."""
    network: Any = getattr(model, "module", model)
    layer = network.get_classifier() if hasattr(network, "get_classifier") else None
    if not isinstance(layer, nn.Module) or isinstance(layer, nn.Identity):
        raise ValueError("distill.kind features needs networks with one classifier layer; use --distill.kind logits")
    found: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _module, inputs: found.append(inputs[0]))
    try:
        yield found
    finally:
        hook.remove()


def _match(classes: Sequence[str], teacher: ImageClassifier) -> list[int]:
    """The teacher's output for each class of the dataset."""
    try:
        found = align_classes(classes, teacher.names, "the dataset", by_place=True)
    except ValueError as error:
        raise ValueError(
            f"distill.teacher has other classes ({error}); train it on them first, or use --distill.kind features"
        ) from None
    return [int(place) for place in found if place is not None]


def _statistics(values: tuple[tuple[float, ...], tuple[float, ...]], device: torch.device) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(v, device=device).reshape(-1, 1, 1) for v in values)
    return mean, std


def _hash(model: nn.Module) -> str:
    """Hash of the weights, whatever file they came from."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
