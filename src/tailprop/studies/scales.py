"""Where should the propagation scales start, and how fast should they learn? A small matched study.

Each row trains one network from the same seed on the same batches; only the scales' start and learning rate differ, or the
propagation is taken out altogether.
"""

import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailprop.checks import check_at_least, check_choice, check_model
from tailprop.data.memory import ImageSet, load_parquet
from tailprop.operator import TailPropagation
from tailprop.provenance import provenance
from tailprop.train import Schedule, build_optimizer, fit

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
    """Compare starting values and learning rates of the propagation scales."""

    data: Path
    """Folder of a Hugging Face image snapshot with train and validation shards."""
    out: Path = Path("results/scale_init.csv")
    """CSV to write."""
    model: str = "tailprop_pico"
    """Backbone."""
    size_px: int = 64
    """Side of the images."""
    epochs: int = 8
    """Passes over the training set."""
    batch: int = 64
    """Images in a step."""
    lr: float = 1e-3
    """Peak learning rate."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; each trial runs once for each."""
    only: tuple[str, ...] = ()
    """Run just these trials."""

    def check(self) -> None:
        for name in self.only:
            check_choice("trial", name, tuple(TRIALS))
        for name, least in (("epochs", 1), ("batch", 1), ("size_px", 32)):
            check_at_least(name, getattr(self, name), least)
        check_model(self.model)


def run(study: ScaleStudy) -> None:
    study.check()
    train = load_parquet(study.data, "train", study.size_px)
    test = load_parquet(study.data, "validation", study.size_px)
    where = provenance()
    names = study.only or tuple(TRIALS)
    rows = []
    for seed in study.seeds:
        for name in names:
            rows.append(dict(trial=name, seed=seed, **_trial(study, train, test, seed, **TRIALS[name]), **where))
            _write(study.out, rows)
            print(rows[-1])


def _trial(
    study: ScaleStudy,
    train: ImageSet,
    test: ImageSet,
    seed: int,
    mixer: str = "tailprop",
    scale_lr: float = 1.0,
    **mixer_args: Any,
) -> dict[str, object]:
    torch.manual_seed(seed)
    model = timm.create_model(
        study.model, num_classes=len(train.classes), mixer=mixer, mixer_args=mixer_args, drop_path_rate=0.05
    )
    steps = study.epochs * (len(train) // study.batch)
    generator = torch.Generator().manual_seed(seed)

    def batches(_epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        return train.batches(study.batch, generator, flip=True, shift_px=study.size_px // 8)

    began = time.perf_counter()
    history = fit(
        model,
        build_optimizer(model, weight_decay=0.05, scale_lr=scale_lr),
        Schedule(study.lr, steps, warmup_steps=steps // 10, min_lr=study.lr / 100),
        batches,
        lambda net, batch: F.cross_entropy(net(batch[0]), batch[1], label_smoothing=0.1),
        lambda net: dict(top1=_accuracy(net, test)),
        study.epochs,
    )
    return dict(
        top1=round(history.epochs[-1]["top1"], 2),
        loss=round(history.epochs[-1]["loss"], 4),
        minutes=round((time.perf_counter() - began) / 60, 1),
        scales=_scales(model),
    )


def _accuracy(model: nn.Module, data: ImageSet) -> float:
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in data.batches(256))
    return 100 * right / len(data)


def _scales(model: nn.Module) -> str:
    """Mean Gaussian/Cauchy scale of each layer."""
    found = [m.scales().mean(1).tolist() for m in model.modules() if isinstance(m, TailPropagation)]
    return " ".join("/".join(f"{k:.3g}" for k in pair) for pair in found)


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
