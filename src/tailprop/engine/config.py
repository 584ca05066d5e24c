"""Settings as dataclasses, filled from a YAML recipe and from the command line; an unknown name is refused with the nearest.

Every field carries a doc line: it is the help text of `tailprop train RECIPE --help`.
"""

import dataclasses
import difflib
import hashlib
import json
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from tailprop.utils.validation import check_at_least

__all__ = ["ModelConfig", "OptimConfig", "RunConfig", "build", "config_hash", "to_dict"]

T = TypeVar("T")


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    name: str = "tailprop_tiny"
    """Any name timm knows, ours included."""
    init: str | None = None
    """Checkpoint to start from: a run folder, .safetensors or .pt file; what does not fit is left out and reported.
    One of another model is refused if it fills less than half of this one."""
    drop_path: float | None = None
    """Stochastic depth; none given = the model's own."""
    in_chans: int = 3
    """Channels of the images."""
    args: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    """Further arguments of the model, in a recipe only."""


@dataclass(frozen=True)
class OptimConfig:
    """AdamW (which without weight decay is Adam), linear warm-up, then a decay."""

    epochs: int = 300
    """Passes over the training set, or multiples of epoch_steps."""
    epoch_steps: int | None = None
    """Optimizer steps that count as an epoch, whatever the size of the training set; none = one pass over it."""
    batch: int = 128
    """Images at once in each process."""
    accumulate: int = 1
    """Batches whose gradients are added up before a step."""
    lr: float = 5e-4
    """Peak learning rate, for a global batch of `lr_batch` images."""
    lr_batch: int | None = 512
    """The learning rate grows with the global batch over this; none = it is taken as it is."""
    min_lr: float = 5e-6
    """Learning rate at the end."""
    warmup_epochs: float = 20.0
    """Epochs of linear warm-up from nearly zero."""
    warmup_steps: int | None = None
    """Optimizer steps of warm-up, in place of warmup_epochs."""
    decay: Literal["cosine", "poly", "steps"] = "cosine"
    """After the warm-up: a cosine or a straight line down to min_lr, or a drop at each of the milestones."""
    milestones: tuple[float, ...] = ()
    """Epochs after which the learning rate drops, for decay steps."""
    gamma: float = 0.1
    """What the learning rate is multiplied by at a milestone."""
    weight_decay: float = 0.08
    """Decay of weights; none on norms, biases, scales and gates."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's momenta."""
    clip: float | None = 5.0
    """Largest norm of the gradient; none = no clipping."""
    scale_lr: float = 1.0
    """Learning rate of the propagation scales over that of everything else."""
    matrix_lr: float | None = None
    """Muon in place of AdamW for matrices, at so many times the learning rate (4 is a good start); none = AdamW for all."""

    def check(self) -> None:
        for name in ("epochs", "batch", "accumulate"):
            check_at_least(f"optim.{name}", getattr(self, name), 1)
        for name in ("lr", "min_lr", "warmup_epochs", "weight_decay", "scale_lr"):
            check_at_least(f"optim.{name}", getattr(self, name), 0)
        if self.matrix_lr is not None and not self.matrix_lr > 0:
            raise ValueError(f"optim.matrix_lr is positive, or none for AdamW alone; got {self.matrix_lr}")
        for name in ("lr_batch", "epoch_steps"):
            if getattr(self, name) is not None:
                check_at_least(f"optim.{name}", getattr(self, name), 1)
        if self.warmup_steps is not None:
            check_at_least("optim.warmup_steps", self.warmup_steps, 0)
        self._check_decay()
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"optim.clip is positive, or none for no clipping; got {self.clip}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optim.betas lie in [0, 1), got {self.betas}")

    def _check_decay(self) -> None:
        if (self.decay == "steps") != bool(self.milestones):
            raise ValueError("optim.milestones belong to optim.decay steps; set both or neither")
        if list(self.milestones) != sorted(self.milestones) or any(m <= 0 for m in self.milestones):
            raise ValueError(f"optim.milestones are rising, positive epochs; got {self.milestones}")
        check_at_least("optim.gamma", self.gamma, 0)


@dataclass(frozen=True)
class RunConfig:
    """Where and how the run goes."""

    out: Path = Path("runs/train")
    """Run folder."""
    resume: bool = False
    """Go on from the last checkpoint of the run folder; start there if it holds none."""
    overwrite: bool = False
    """Throw away the run that is in the folder."""
    seed: int = 0
    """Seed of weights, order and augmentation."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast type; fp16 scales the loss."""
    threads: int = 0
    """CPU threads of each process; 0 = PyTorch's choice."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights, which is then evaluated; 0 = none."""
    compile: bool = False
    """torch.compile the model, anew for each size of its input."""
    grad_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    check_gradients: bool = False
    """Stop at a gradient that is not finite (the loss is always checked)."""
    save_every: int = 500
    """Steps between checkpoints; one is written after every epoch as well."""
    log_every: int = 20
    """Steps between lines of metrics.jsonl."""
    eval_every: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    tensorboard: bool = True
    """Write TensorBoard events."""

    def check(self) -> None:
        for name in ("save_every", "log_every", "eval_every"):
            check_at_least(f"run.{name}", getattr(self, name), 1)
        check_at_least("run.threads", self.threads, 0)
        check_at_least("run.seed", self.seed, 0)
        if not 0 <= self.ema < 1:
            raise ValueError(f"run.ema lies in [0, 1), got {self.ema}")
        if self.resume and self.overwrite:
            raise ValueError("run.resume and run.overwrite exclude each other; choose one")


def build(kind: type[T], values: dict[str, Any], where: str = "") -> T:
    """An instance of a dataclass from plain values; unknown names and wrong types are refused."""
    hints = typing.get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type] # T is a dataclass
    for name in values:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, n=1)
            hint = f"did you mean {where}{close[0]}?" if close else f"there are {', '.join(names)}"
            raise ValueError(f"unknown setting {where}{name}; {hint}")
    return kind(**{name: _convert(hints[name], value, f"{where}{name}") for name, value in values.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ValueError(f"{where} holds several settings, got {value!r}")
        return build(typing.cast(type, hint), value, f"{where}.")
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_optional(args, value, where)
    if origin is Literal:
        if value not in args:
            raise ValueError(f"{where} is one of {', '.join(map(str, args))}, got {value!r}")
        return value
    if origin is tuple:
        return _convert_tuple(args, value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where} holds values by name, got {value!r}")
        return value
    if hint is Any:
        return value
    return _convert_scalar(hint, value, where)


def _convert_optional(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None:
        return None
    kinds = [a for a in args if a is not type(None)]
    return _convert(kinds[0], value, where)


def _convert_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or (args[-1] is not Ellipsis and len(value) != len(args)):
        raise ValueError(f"{where} is a list of {'any length' if args[-1] is Ellipsis else len(args)}, got {value!r}")
    kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
    return tuple(_convert(kind, item, where) for kind, item in zip(kinds, value, strict=True))


def _convert_scalar(hint: Any, value: Any, where: str) -> Any:
    fits = {bool: bool, int: int, float: (int, float, str), str: str, Path: (str, Path)}[hint]  # YAML reads 5e-4 as text
    if (isinstance(value, bool) and hint is not bool) or not isinstance(value, fits):  # type: ignore[arg-type]
        raise ValueError(f"{where} is of type {hint.__name__}, got {value!r}")
    try:
        return hint(value)
    except ValueError:
        raise ValueError(f"{where} is of type {hint.__name__}, got {value!r}") from None


def to_dict(config: Any) -> dict[str, Any]:
    """Plain values, ready for YAML or JSON, and the same when they are read again: 20.0 where 20 was given for a float."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return str(value) if isinstance(value, Path) else value

    return plain(dataclasses.asdict(build(type(config), plain(dataclasses.asdict(config)))))


def config_hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
