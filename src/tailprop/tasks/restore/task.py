"""Restoration: settings, model, batches, loss and metrics."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tailprop.backbone.cost import count_macs, count_parameters
from tailprop.data.loader import create_loader, to_device
from tailprop.data.samplers import EvalSampler
from tailprop.data.splits import hash_parts
from tailprop.engine.checkpoint import warm_start
from tailprop.engine.config import ModelConfig
from tailprop.runtime.distributed import World, all_reduce_sum
from tailprop.tasks.common.figures import draw_learning, run_title
from tailprop.tasks.common.hub import initial_state
from tailprop.tasks.common.models import model_arguments
from tailprop.tasks.common.task import BaseTask, create_train_sampler, data_summary
from tailprop.tasks.restore.config import RestoreConfig
from tailprop.tasks.restore.data import CropDataset, PairBatch, WholeImageDataset, collate_pairs
from tailprop.tasks.restore.figures import draw_restored
from tailprop.tasks.restore.inference import evaluate_restorer, in_colour, restore_whole
from tailprop.tasks.restore.metrics import Restored, Scores
from tailprop.tasks.restore.model import create_restorer
from tailprop.utils.text import say_lines

__all__ = ["Restoration", "build_restorer", "charbonnier", "take_one"]

_DRAWN = 4  # images drawn in restored.png


class Restoration(BaseTask[RestoreConfig]):
    """The restoration task of one process."""

    def __init__(self, config: RestoreConfig, world: World) -> None:
        super().__init__(config, world, config.data.on_broken)
        data, channels = config.data, config.model.in_chans
        self.paths = {"train": data.list_train_images(), "test": data.list_test_images()}
        self.sampler = create_train_sampler(len(self.paths["train"]), config.optim, config.run.seed, world)
        crops = CropDataset(self.paths["train"], data, channels)
        self.train_loader = create_loader(crops, self.sampler, collate_pairs, data.workers, world.device)
        whole = WholeImageDataset(self.paths["test"], data, channels)
        self.partners = {"train": list(crops.partners.values()), "test": list(whole.partners.values())}
        eval_sampler = EvalSampler(len(whole), 1, world)  # one at a time: sizes differ
        self.eval_loader = create_loader(whole, eval_sampler, take_one, min(1, data.workers), world.device)
        self.broken.record(whole.find_broken(), shared=True)  # fail now, not after the first epoch
        self.drawn: list[Restored] = []

    def build_model(self, resumed: bool = False) -> nn.Module:
        report = self.world.is_main and not resumed
        return build_restorer(self.model_config(resumed), self.config.data.scale, report)

    def loss(self, model: nn.Module, batch: PairBatch) -> Tensor:
        self.check_batch(batch)
        restored = model(to_device(batch.degraded, self.world.device))
        return charbonnier(restored, to_device(batch.clean, self.world.device), self.config.loss_eps)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        self.drawn = []
        losses = torch.zeros(2, dtype=torch.float64)  # sum, count

        def add_loss(restored: Tensor, clean: Tensor) -> None:
            losses.add_(torch.tensor([float(charbonnier(restored, clean, self.config.loss_eps)), 1.0]))

        def restore(degraded: Tensor) -> Tensor:
            return in_colour(lambda x: restore_whole(model, x), degraded, self.config.model.in_chans)

        protocol = self.config.data.protocol
        scores = evaluate_restorer(
            restore, self.eval_loader, self.world.device, self._keep, self.broken.record, add_loss, protocol
        )
        total, count = all_reduce_sum(losses, self.world.device).tolist()
        return self._metrics(scores) | {"val_loss": total / count}

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """The entries of this task in the manifest."""
        side = self.config.data.crop_px // self.config.data.scale
        return {
            "examples": {name: len(paths) for name, paths in self.paths.items()},
            "split_hash": {name: _hash([*paths, *self.partners[name]]) for name, paths in self.paths.items()},
            "parameters": count_parameters(model),
            "macs": count_macs(model.eval(), side, side),
        }

    def data_summary(self) -> str:
        return data_summary((), {name: len(paths) for name, paths in self.paths.items()})

    def metadata(self) -> dict[str, str]:
        """The metadata of the exported weights."""
        return {"architecture": self.config.model.name, "in_chans": str(self.config.model.in_chans)}

    def draw(self, history: list[dict[str, float]], folder: Path) -> None:
        title = run_title(self.config, folder)
        draw_learning(history, folder / "learning.png", {"psnr": "PSNR, dB"}, "test", title)
        if self.drawn:
            draw_restored(self.drawn, folder / "restored.png", title=title, before=self.config.data.before)

    def summary(self, best: dict[str, float]) -> str:
        number = self.config.paper_psnr.get(self.config.model.name)
        paper = "" if number is None else f" (the paper, on {self.config.paper_set}: {number})"
        blocks = f", PSNR-B {best['psnr_b']:.2f} dB" if "psnr_b" in best else ""
        return f"PSNR {best['psnr']:.2f} dB{paper}, SSIM {best['ssim']:.4f}{blocks}"

    def _metrics(self, scores: Scores) -> dict[str, float]:
        names = ("psnr", "ssim", "psnr_b") if self.config.data.degradation == "jpeg" else ("psnr", "ssim")
        return {name: scores.mean(name) for name in names}

    def _keep(self, restored: Restored) -> None:
        if len(self.drawn) < _DRAWN:
            self.drawn.append(restored)


def charbonnier(restored: Tensor, clean: Tensor, eps: float = 1e-3) -> Tensor:
    """Mean of sqrt((x - y)^2 + eps^2): the absolute error, smoothed around zero."""
    return torch.sqrt((restored.float() - clean).square() + eps**2).mean()


def build_restorer(config: ModelConfig, scale: int = 1, report: bool = True) -> nn.Module:
    """Create the network with random weights or those of a checkpoint."""
    given = model_arguments(config) | ({"upscale": scale} if scale > 1 else {})
    model = create_restorer(config.name, config.in_chans, **given)
    if config.init is not None:
        loaded = warm_start(model, initial_state(config)[0])
        if report:
            say_lines(loaded)
    return model


def take_one(examples: Sequence[Sequence[Any]]) -> Any:
    """Collate a batch of one example: return the example."""
    return examples[0][0]


def _hash(paths: Sequence[Path]) -> str:
    """A fingerprint of the images: their names and file sizes, independent of the folder."""
    lines = sorted(f"{path.name} {path.stat().st_size}" for path in paths)
    return hash_parts(["\n".join(lines)])
