"""The settings every task shares: model, optimizer, run.

Every field carries a doc line: it is the help text of `tailprop train RECIPE --help`. What a field means for resuming and
exporting stands in `setting`.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tailprop.engine.settings import setting
from tailprop.utils.validation import check_at_least

__all__ = ["ModelConfig", "OptimConfig", "RunConfig", "TaskConfig"]


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    name: str = "tailprop_tiny"
    """Any name timm knows, ours included."""
    init: str | None = setting(None, local=True)
    """Checkpoint to start from: a run folder, .safetensors or .pt file; what does not fit is left out and reported.
    One of another model is refused if it fills less than half of this one."""
    drop_path: float | None = None
    """Stochastic depth; none given = the model's own."""
    in_chans: int = 3
    """Channels of the images."""
    args: dict[str, Any] = setting(factory=dict)
    """Further arguments of the model as name=value, for example mixer=cauchy mixer_args.scale_init=0.2."""


@dataclass(frozen=True)
class OptimConfig:
    """Optimizer, linear warm-up, then a decay of the learning rate."""

    name: Literal["adamw", "muon", "sgd"] = "adamw"
    """adamw; muon: orthogonal steps for matrices, AdamW for the rest; sgd: Nesterov momentum of betas[0]."""
    epochs: int = 300
    """Passes over the training set, or multiples of epoch_steps."""
    epoch_steps: int | None = None
    """Optimizer steps that count as an epoch, whatever the size of the training set; none = one pass over it."""
    batch_size: int = setting(128, free=True, aliases=("batch",))
    """Images at once in each process."""
    grad_accum_steps: int = setting(1, free=True, aliases=("accumulate",))
    """Batches whose gradients are added up before a step."""
    lr: float = 5e-4
    """Peak learning rate, for a global batch of `lr_base_size` images."""
    lr_base_size: int | None = setting(512, aliases=("lr_batch",))
    """The learning rate grows with the global batch over this; none = it is taken as it is."""
    min_lr: float = 5e-6
    """Learning rate at the end."""
    warmup_epochs: float = 20.0
    """Epochs of linear warm-up from nearly zero."""
    warmup_steps: int | None = None
    """Optimizer steps of warm-up, in place of warmup_epochs."""
    sched: Literal["cosine", "poly", "steps"] = setting("cosine", aliases=("decay",))
    """After the warm-up: a cosine or a straight line down to min_lr, or a drop at each of the milestones."""
    milestones: tuple[float, ...] = ()
    """Epochs after which the learning rate drops, for sched steps."""
    gamma: float = 0.1
    """What the learning rate is multiplied by at a milestone."""
    weight_decay: float = 0.08
    """Weight decay; none on norms, biases, scales and gates."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's momenta."""
    clip_grad: float | None = setting(5.0, aliases=("clip",))
    """Largest norm of the gradient; none = no clipping."""
    scale_lr: float = 1.0
    """Learning rate of the propagation scales over that of everything else."""
    muon_lr_scale: float = 4.0
    """Muon's learning rate for matrices over that of everything else."""

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Until Muon had a name, `matrix_lr` chose it."""
        if "matrix_lr" in values and (scale := values.pop("matrix_lr")) is not None:
            values |= {"name": "muon", "muon_lr_scale": scale}
        return values

    def check(self) -> None:
        for name in ("epochs", "batch_size", "grad_accum_steps"):
            check_at_least(f"optim.{name}", getattr(self, name), 1)
        for name in ("lr", "min_lr", "warmup_epochs", "weight_decay", "scale_lr"):
            _check_rate(f"optim.{name}", getattr(self, name))
        if not 0 < self.muon_lr_scale < math.inf:
            raise ValueError(f"optim.muon_lr_scale must be positive and finite, got {self.muon_lr_scale}")
        for name in ("lr_base_size", "epoch_steps"):
            if getattr(self, name) is not None:
                check_at_least(f"optim.{name}", getattr(self, name), 1)
        if self.warmup_steps is not None:
            check_at_least("optim.warmup_steps", self.warmup_steps, 0)
        self._check_schedule()
        if self.clip_grad is not None and not self.clip_grad > 0:
            raise ValueError(f"optim.clip_grad is positive, or none for no clipping; got {self.clip_grad}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optim.betas lie in [0, 1), got {self.betas}")

    def _check_schedule(self) -> None:
        if (self.sched == "steps") != bool(self.milestones):
            raise ValueError("optim.milestones belong to optim.sched steps; set both or neither")
        if list(self.milestones) != sorted(self.milestones) or any(not 0 < m < math.inf for m in self.milestones):
            raise ValueError(f"optim.milestones are rising, positive epochs; got {self.milestones}")
        _check_rate("optim.gamma", self.gamma)


def _check_rate(name: str, value: float) -> None:
    if not 0 <= value < math.inf:  # written so that NaN is refused too
        raise ValueError(f"{name} must be finite and at least 0, got {value}")


@dataclass(frozen=True)
class RunConfig:
    """Where and how the run goes."""

    out: Path = setting(Path("runs/train"), free=True)
    """Run folder."""
    resume: bool = setting(False, free=True)
    """Resume from the last checkpoint of the run folder; start there if it holds none."""
    overwrite: bool = setting(False, free=True)
    """Throw away the run that is in the folder."""
    seed: int = 0
    """Seed of weights, order and augmentation."""
    device: Literal["auto", "cpu", "cuda", "mps"] = setting("auto", free=True)
    """Where to train; auto takes a GPU if there is one."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast type; fp16 scales the loss."""
    threads: int = setting(0, free=True)
    """CPU threads of each process; 0 = PyTorch's choice."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights, which is then evaluated; 0 = none."""
    compile: bool = False
    """torch.compile the model, anew for each size of its input."""
    grad_checkpointing: bool = setting(False, free=True)
    """Compute activations again in the backward pass instead of keeping them."""
    check_gradients: bool = setting(False, free=True)
    """Stop at a gradient that is not finite (the loss is always checked)."""
    save_every: int = setting(500, free=True)
    """Steps between checkpoints; one is written after every epoch as well."""
    log_every: int = setting(20, free=True)
    """Steps between lines of metrics.jsonl."""
    eval_every: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    tensorboard: bool = setting(True, free=True)
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


@dataclass(frozen=True)
class TaskConfig:
    """What the settings of every task have; a task adds its own sections."""

    task: str = ""
    """What is trained."""
    model: ModelConfig = setting(factory=ModelConfig)
    optim: OptimConfig = setting(factory=OptimConfig)
    run: RunConfig = setting(factory=RunConfig, local=True, free=False)

    def check(self) -> None:
        self.optim.check()
        self.run.check()
