"""Restoration: settings, model, batches, loss and metrics."""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor, nn

from tailprop.backbone.cost import count_macs, count_parameters
from tailprop.data.broken import Damage, require_full
from tailprop.data.loader import make_loader, to_device
from tailprop.data.samplers import EvalOrder, TrainOrder
from tailprop.engine.checkpoint import read_state_dict, warm_start
from tailprop.engine.config import ModelConfig, OptimConfig, RunConfig
from tailprop.engine.run_settings import weights_file
from tailprop.runtime.distributed import World
from tailprop.tasks.common.figures import draw_learning
from tailprop.tasks.restore.data import Crops, PairBatch, RestoreDataConfig, WholePictures, collate_pairs
from tailprop.tasks.restore.figures import draw_restored
from tailprop.tasks.restore.inference import evaluate_restorer, restore_whole
from tailprop.tasks.restore.metrics import Restored, Scores
from tailprop.tasks.restore.model import RESTORERS, create_restorer
from tailprop.utils.validation import check_at_least, check_choice

__all__ = ["Restoration", "RestoreConfig", "RestorerConfig", "build_restorer", "charbonnier", "take_one"]

_SHOWN = 4  # pictures kept for the drawing of a run


@dataclass(frozen=True)
class RestorerConfig(ModelConfig):
    """The network."""

    name: str = "tailprop_ir"
    """tailprop_ir, vheat_ir, waveformer_ir, swinir, identity_ir, each with _light too; or dncnn."""
    in_chans: int = 1
    """1 for gray pictures, 3 for colour."""


@dataclass(frozen=True)
class RestoreConfig:
    """Train a network that restores pictures."""

    task: Literal["restore"] = "restore"
    """What is trained."""
    paper_psnr: Annotated[dict[str, float], tyro.conf.Suppress] = field(default_factory=dict)
    """The paper's number for a network of this recipe, to stand beside ours."""
    paper_set: str = ""
    """The test set it was measured on."""
    loss_eps: float = 1e-3
    """Charbonnier's epsilon: errors below it count by their square, white being 1."""
    model: RestorerConfig = field(default_factory=RestorerConfig)
    data: RestoreDataConfig = field(default_factory=RestoreDataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def check(self) -> None:
        check_choice("restoration model", self.model.name, tuple(RESTORERS))
        if self.model.in_chans not in (1, 3):
            raise ValueError(f"pictures are gray or colour, model.in_chans is 1 or 3; got {self.model.in_chans}")
        check_at_least("loss_eps", self.loss_eps, 0)
        self.data.check()
        self.optim.check()
        self.run.check()


class Restoration:
    """The task, for one process."""

    metric = "psnr"

    def __init__(self, config: RestoreConfig, world: World) -> None:
        self.config, self.world = config, world
        data, optim, channels = config.data, config.optim, config.model.in_chans
        self.paths = {"train": data.train_pictures(), "test": data.test_pictures()}
        self.order = TrainOrder(
            len(self.paths["train"]), optim.batch, config.run.seed, world, optim.accumulate, optim.epochs, optim.epoch_steps
        )
        crops = Crops(self.paths["train"], data, channels)
        self.train_loader = make_loader(crops, self.order, collate_pairs, data.workers, world.device)
        whole = WholePictures(self.paths["test"], data, channels)
        eval_order = EvalOrder(len(whole), 1, world)  # one at a time: sizes differ
        self.eval_loader = make_loader(whole, eval_order, take_one, min(1, data.workers), world.device)
        self.broken = Damage(config.data.on_broken, world.is_first)
        self.broken.note(whole.find_broken(), shared=True)  # better now than after the first epoch
        self.shown: list[Restored] = []

    def build_model(self, resumed: bool = False) -> nn.Module:
        config = dataclasses.replace(self.config.model, init=None) if resumed else self.config.model
        return build_restorer(config, report=self.world.is_first and not resumed)

    def batches(self, epoch: int, step: int) -> Iterable[PairBatch]:
        """The batches of this process in an epoch, from an optimizer step on."""
        self.order.begin(epoch, step)
        return self.train_loader

    def loss(self, model: nn.Module, batch: PairBatch) -> Tensor:
        self.broken.note(batch.broken)
        require_full(batch, self.config.optim.batch)
        restored = model(to_device(batch.damaged, self.world.device))
        return charbonnier(restored, to_device(batch.clean, self.world.device), self.config.loss_eps)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        self.shown = []
        found = evaluate_restorer(
            lambda x: restore_whole(model, x), self.eval_loader, self.world.device, self._keep, self.broken.note
        )
        return self._metrics(found)

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """What the manifest says of this task."""
        side = self.config.data.crop_px
        return {
            "examples": {name: len(paths) for name, paths in self.paths.items()},
            "split_hash": {name: _hash(paths) for name, paths in self.paths.items()},
            "parameters": count_parameters(model),
            "macs": count_macs(model.eval(), side, side),
        }

    def metadata(self) -> dict[str, str]:
        """What the exported weights say of themselves."""
        return {"architecture": self.config.model.name, "in_chans": str(self.config.model.in_chans)}

    def draw(self, history: list[dict[str, float]], folder: Path) -> None:
        draw_learning(history, folder / "learning.png", {"psnr": "PSNR, dB"})
        if self.shown:
            draw_restored(self.shown, folder / "restored.png")

    def summary(self, best: dict[str, float]) -> str:
        number = self.config.paper_psnr.get(self.config.model.name)
        paper = "" if number is None else f" (the paper, on {self.config.paper_set}: {number})"
        blocks = f", PSNR-B {best['psnr_b']:.2f} dB" if "psnr_b" in best else ""
        return f"PSNR {best['psnr']:.2f} dB{paper}, SSIM {best['ssim']:.4f}{blocks}"

    def _metrics(self, scores: Scores) -> dict[str, float]:
        names = ("psnr", "ssim", "psnr_b") if self.config.data.damage == "jpeg" else ("psnr", "ssim")
        return {name: scores.mean(name) for name in names}

    def _keep(self, restored: Restored) -> None:
        if len(self.shown) < _SHOWN:
            self.shown.append(restored)


def charbonnier(restored: Tensor, clean: Tensor, eps: float = 1e-3) -> Tensor:
    """mean of sqrt((x - y)^2 + eps^2): absolute error with a smooth bottom."""
    return torch.sqrt((restored.float() - clean).square() + eps**2).mean()


def build_restorer(config: ModelConfig, report: bool = True) -> nn.Module:
    """The network, from scratch or from a checkpoint."""
    settings = dict(config.args)
    if config.drop_path is not None:
        settings["drop_path_rate"] = config.drop_path
    model = create_restorer(config.name, config.in_chans, **settings)
    if config.init is not None:
        taken = warm_start(model, read_state_dict(weights_file(config.init)))
        if report:
            print(taken)
    return model


def take_one(examples: Sequence[Any]) -> Any:
    """The loader's batch of one, taken out."""
    return examples[0]


def _hash(paths: Sequence[Path]) -> str:
    """A fingerprint of which pictures these are: names and sizes, wherever their folder lies."""
    lines = sorted(f"{path.name} {path.stat().st_size}" for path in paths)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
