"""The settings that all tasks share: model, optimizer, run.

The docstring under a field is its help text in `tailprop train RECIPE --help`. The arguments of `setting` say how resuming and
exporting treat the field.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tailprop.engine.settings import check_numbers, setting
from tailprop.utils.durations import parse_duration
from tailprop.utils.extras import check_tracker
from tailprop.utils.validation import check_at_least

__all__ = ["ModelConfig", "OptimConfig", "RunConfig", "TaskConfig"]


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    name: str = "tailprop_tiny"
    """Any timm model name, including ours."""
    init: str | None = setting(None, local=True)
    """Checkpoint for a warm start: a run folder, .safetensors or .pt file, a shipped model by name, timm:NAME for timm's
    pretrained weights, or hf-hub:USER/NAME. Weights that do not fit are skipped and reported. A checkpoint of another model is
    an error if it fills less than half of this one."""
    drop_path: float | None = None
    """Stochastic depth rate; none = the model's default."""
    in_chans: int = 3
    """Number of input channels."""
    args: dict[str, Any] = setting(factory=dict)
    """Further model arguments as name=value, for example mixer=cauchy mixer_args.scale_init=0.2."""
    freeze: tuple[str, ...] = setting((), late=True)
    """Modules that are not trained, for example stem stages.0; backbone = everything before the head. Their norm statistics
    stay as they are, and they drop no paths."""


@dataclass(frozen=True)
class OptimConfig:
    """Optimizer, linear warm-up, learning rate decay."""

    name: Literal["adamw", "muon", "sgd"] = "adamw"
    """adamw; muon: orthogonal updates for matrices, AdamW for the rest; sgd: with Nesterov momentum betas[0]."""
    epochs: int = 300
    """Passes over the training set, or multiples of epoch_steps."""
    epoch_steps: int | None = None
    """Optimizer steps per epoch, independent of the size of the training set; none = one pass over it."""
    batch_size: int = setting(128, free=True, aliases=("batch",))
    """Images per batch in each process."""
    grad_accum_steps: int = setting(1, free=True, aliases=("accumulate",))
    """Batches whose gradients are accumulated before an optimizer step."""
    lr: float = 5e-4
    """Peak learning rate, for a global batch of `lr_base_size` images."""
    lr_base_size: int | None = setting(512, aliases=("lr_batch",))
    """The learning rate is scaled by the global batch size over this; none = it is not scaled."""
    min_lr: float = 5e-6
    """Final learning rate."""
    warmup_epochs: float = 20.0
    """Epochs of linear warm-up, starting near zero."""
    warmup_steps: int | None = None
    """Warm-up in optimizer steps, instead of warmup_epochs."""
    sched: Literal["cosine", "poly", "steps"] = setting("cosine", aliases=("decay",))
    """Decay after the warm-up: cosine or linear to min_lr, or a drop at each milestone."""
    milestones: tuple[float, ...] = ()
    """Epochs after which the learning rate drops, for sched steps."""
    gamma: float = 0.1
    """Factor of the learning rate at each milestone."""
    weight_decay: float = 0.08
    """Weight decay; norms, biases, scales and gates have none."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's beta1 and beta2; the first is also the momentum of sgd."""
    clip_grad: float | None = setting(5.0, aliases=("clip",))
    """Maximum gradient norm; none = no clipping."""
    scale_lr: float = 1.0
    """Learning rate factor of the propagation scales."""
    muon_lr_scale: float = 4.0
    """Learning rate factor of the matrices that Muon updates."""
    layer_decay: float = setting(1.0, late=True)
    """Learning rate factor from each layer of the backbone to the one before it, as in timm; 1 = the same for all."""
    head_lr: float = setting(1.0, late=True)
    """Learning rate factor of the head: of a classifier, or of all that follows the backbone of a detector or a segmenter."""

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Before `optim.name` had the value muon, `matrix_lr` selected it."""
        if "matrix_lr" in values and (scale := values.pop("matrix_lr")) is not None:
            values |= {"name": "muon", "muon_lr_scale": scale}
        return values

    def check(self) -> None:
        for name in ("epochs", "batch_size", "grad_accum_steps"):
            check_at_least(f"optim.{name}", getattr(self, name), 1)
        for name in ("lr", "min_lr", "warmup_epochs", "weight_decay", "scale_lr", "head_lr"):
            _check_rate(f"optim.{name}", getattr(self, name))
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"optim.layer_decay must be in (0, 1], where 1 is off; got {self.layer_decay}")
        if not 0 < self.muon_lr_scale < math.inf:
            raise ValueError(f"optim.muon_lr_scale must be positive and finite, got {self.muon_lr_scale}")
        for name in ("lr_base_size", "epoch_steps"):
            if getattr(self, name) is not None:
                check_at_least(f"optim.{name}", getattr(self, name), 1)
        if self.warmup_steps is not None:
            check_at_least("optim.warmup_steps", self.warmup_steps, 0)
        self._check_schedule()
        if self.clip_grad is not None and not self.clip_grad > 0:
            raise ValueError(f"optim.clip_grad must be positive, or none for no clipping; got {self.clip_grad}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optim.betas must be in [0, 1), got {self.betas}")

    def _check_schedule(self) -> None:
        if (self.sched == "steps") != bool(self.milestones):
            raise ValueError("optim.milestones need optim.sched steps, and the reverse; set both or neither")
        if list(self.milestones) != sorted(self.milestones) or any(not 0 < m < math.inf for m in self.milestones):
            raise ValueError(f"optim.milestones must be positive, increasing epochs; got {self.milestones}")
        _check_rate("optim.gamma", self.gamma)


def _check_rate(name: str, value: float) -> None:
    if not 0 <= value < math.inf:  # written so that NaN is rejected too
        raise ValueError(f"{name} must be finite and at least 0, got {value}")


@dataclass(frozen=True)
class RunConfig:
    """Run folder, device, precision and checkpoints."""

    out: Path = setting(Path("runs/train"), free=True)
    """Run folder."""
    resume: bool = setting(False, free=True)
    """Resume from the last checkpoint of the run folder; without one, start a new run there."""
    overwrite: bool = setting(False, free=True)
    """Delete the run that is in the folder."""
    seed: int = 0
    """Seed of initial weights, shuffling and augmentation."""
    matched_init: bool = setting(False, late=True)
    """Initial weights that do not depend on the mixer, for runs that are compared with each other."""
    device: Literal["auto", "cpu", "cuda", "mps"] = setting("auto", free=True)
    """Device; auto = a GPU if there is one."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast dtype; fp16 uses loss scaling."""
    threads: int = setting(0, free=True)
    """CPU threads per process; 0 = PyTorch's default."""
    ema: float = 0.0
    """Decay of the exponential moving average of the weights, which is then evaluated and exported; 0 = off."""
    compile: bool = False
    """Compile the model with torch.compile, once per input size."""
    grad_checkpointing: bool = setting(False, free=True)
    """Recompute activations in the backward pass to save memory."""
    check_gradients: bool = setting(False, free=True)
    """Stop at a non-finite gradient (the loss is always checked)."""
    save_every: int = setting(500, free=True)
    """Steps between checkpoints; every epoch also ends with one."""
    log_every: int = setting(20, free=True)
    """Steps between lines of metrics.jsonl."""
    eval_every: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    patience: int = setting(0, free=True)
    """Stop after this many evaluations in a row without a better one; 0 = off."""
    time_budget: str | None = setting(None, free=True)
    """Stop after this time of training and evaluation, for example 45s, 30m or 1h30m, and evaluate. The learning rate then
    decays by the clock, if that is ahead of the epochs."""
    tensorboard: bool = setting(True, free=True)
    """Write TensorBoard events."""
    track: Literal["trackio", "wandb", "mlflow"] | None = setting(None, free=True)
    """Also send the lines of metrics.jsonl to this tracker; none = to no tracker."""
    track_project: str = setting("tailprop", free=True)
    """Project of the tracker, which MLflow calls an experiment."""

    @property
    def budget_seconds(self) -> float:
        """The time budget; infinite without one."""
        return math.inf if self.time_budget is None else parse_duration(self.time_budget, "run.time_budget")

    def check(self) -> None:
        for name in ("save_every", "log_every", "eval_every"):
            check_at_least(f"run.{name}", getattr(self, name), 1)
        check_at_least("run.threads", self.threads, 0)
        check_at_least("run.patience", self.patience, 0)
        if not self.budget_seconds > 0:
            raise ValueError(f"run.time_budget must be longer than nothing, got {self.time_budget}")
        if self.track is not None:
            check_tracker(self.track)
            if not self.track_project:
                raise ValueError("run.track_project is empty; name a project, or leave it out")
        check_at_least("run.seed", self.seed, 0)
        if not 0 <= self.ema < 1:
            raise ValueError(f"run.ema must be in [0, 1), got {self.ema}")
        if self.resume and self.overwrite:
            raise ValueError("run.resume and run.overwrite exclude each other; choose one")


@dataclass(frozen=True)
class TaskConfig:
    """Settings that every task has; a task adds its own sections."""

    task: str = ""
    """Name of the task."""
    model: ModelConfig = setting(factory=ModelConfig)
    optim: OptimConfig = setting(factory=OptimConfig)
    run: RunConfig = setting(factory=RunConfig, local=True, free=False)

    def check(self) -> None:
        check_numbers(self)
        if len(set(self.model.freeze)) < len(self.model.freeze) or "" in self.model.freeze:
            raise ValueError(f"model.freeze must be names of modules, each once; got {', '.join(self.model.freeze)}")
        self.optim.check()
        self.run.check()
