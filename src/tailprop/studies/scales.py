"""`tailprop scales`: compare initial values and learning rates of the propagation scales.

Each row trains one network from the same seed on the same batches; only the initial scales and their learning rate differ, or
the propagation is removed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from tailprop.backbone.operator import TailPropagation
from tailprop.engine.config import ModelConfig, OptimConfig, RunConfig
from tailprop.engine.launch import train
from tailprop.runtime.distributed import init_distributed
from tailprop.runtime.provenance import provenance
from tailprop.tasks import find_spec
from tailprop.tasks.classify.config import AugmentConfig, ClassifyConfig, DataConfig
from tailprop.tasks.common.bench import write_rows
from tailprop.tasks.common.models import check_model
from tailprop.utils.text import say
from tailprop.utils.validation import check_at_least, check_choice

TRIALS: dict[str, dict[str, Any]] = {
    "no propagation": dict(mixer="identity"),
    "0.02": dict(scale_init=0.02),
    "0.02, 10x rate": dict(scale_init=0.02, scale_lr=10.0),
    "0.2": dict(scale_init=0.2),
    "0.2, 10x rate": dict(scale_init=0.2, scale_lr=10.0),
    "1.0": dict(scale_init=1.0),
    "1.0, 10x rate": dict(scale_init=1.0, scale_lr=10.0),
    "per channel, 0.2": dict(scale_init=0.2, scale_per_channel=True),
    "per channel, 0.2, 10x rate": dict(scale_init=0.2, scale_per_channel=True, scale_lr=10.0),
}


@dataclass(frozen=True)
class ScaleStudy:
    """Compare initial values and learning rates of the propagation scales."""

    data: Path
    """Folder of a Hugging Face image snapshot with train and validation shards."""
    out: Path = Path("results/scale_init.csv")
    """CSV file for the results."""
    model: str = "tailprop_pico"
    """Backbone."""
    size_px: int = 64
    """Image size."""
    epochs: int = 8
    """Epochs."""
    batch_size: int = 64
    """Images per step."""
    lr: float = 1e-3
    """Peak learning rate."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; each trial runs once per seed."""
    only: tuple[str, ...] = ()
    """Names of the trials to run; default: all."""
    workers: int = 2
    """Loader processes."""

    def check(self) -> None:
        for name in self.only:
            check_choice("trial", name, tuple(TRIALS))
        for name, least in (("epochs", 1), ("batch_size", 1), ("size_px", 32)):
            check_at_least(name, getattr(self, name), least)
        check_model(self.model)


def run(study: ScaleStudy) -> None:
    study.check()
    where = provenance()
    rows = []
    for seed in study.seeds:
        for name in study.only or tuple(TRIALS):
            rows.append(dict(trial=name, seed=seed, **_trial(study, name, seed, **TRIALS[name]), **where))
            write_rows(study.out, rows)
            say(rows[-1])


def _trial(
    study: ScaleStudy, name: str, seed: int, mixer: str = "tailprop", scale_lr: float = 1.0, **mixer_args: Any
) -> dict[str, object]:
    folder = study.out.with_suffix("") / f"{name.replace(',', '').replace(' ', '_')}-{seed}"
    config = ClassifyConfig(
        model=ModelConfig(name=study.model, drop_path=0.05, args=dict(mixer=mixer, mixer_args=mixer_args)),
        data=DataConfig(source="parquet", root=study.data, size_px=study.size_px, crop_pct=1.0, workers=study.workers),
        augment=AugmentConfig(scale=(0.5, 1.0), color_jitter=0.0, auto_augment=None, erase=0.0, mixup=0.0, cutmix=0.0),
        optim=OptimConfig(
            epochs=study.epochs,
            batch_size=study.batch_size,
            lr=study.lr,
            lr_base_size=None,
            min_lr=study.lr / 100,
            warmup_epochs=study.epochs / 10,
            weight_decay=0.05,
            scale_lr=scale_lr,
        ),
        run=RunConfig(out=folder, seed=seed, overwrite=True, tensorboard=False),
    )
    trainer, _ = train(find_spec(config.task), config, init_distributed(), summary=False)
    last = trainer.loop.history[-1]
    return dict(
        top1=round(last["top1"], 2),
        loss=round(last["loss"], 4),
        minutes=round(last["minutes"], 1),
        scales=_scales(trainer.state.model),
    )


def _scales(model: nn.Module) -> str:
    """Mean Gaussian/Cauchy scales of each layer."""
    found = [m.scales().mean(1).tolist() for m in model.modules() if isinstance(m, TailPropagation)]
    return " ".join("/".join(f"{k:.3g}" for k in pair) for pair in found)
