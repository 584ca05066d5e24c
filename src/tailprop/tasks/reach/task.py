"""Reach: settings, model, batches, loss and metrics."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailprop.backbone.cost import count_macs, count_parameters
from tailprop.data.broken import Broken
from tailprop.data.loader import create_loader, to_device
from tailprop.data.samplers import EvalSampler
from tailprop.engine.checkpoint import warm_start
from tailprop.engine.config import ModelConfig
from tailprop.runtime.distributed import World, all_gather, all_reduce_sum
from tailprop.tasks.common.figures import draw_learning, run_title
from tailprop.tasks.common.hub import initial_state
from tailprop.tasks.common.models import create, model_arguments
from tailprop.tasks.common.task import BaseTask, create_train_sampler, data_summary
from tailprop.tasks.reach.config import ReachConfig
from tailprop.tasks.reach.data import ReachBatch, ReachDataset, collate_posed
from tailprop.tasks.reach.figures import Drawn, draw_examples
from tailprop.tasks.reach.model import ReachNet
from tailprop.tasks.reach.problems import IGNORED, Array, Problem
from tailprop.utils.text import say_lines

__all__ = ["Reach", "build_reach", "run_network", "score_batches"]

_DRAWN = 4  # examples drawn in examples.png


class Reach(BaseTask[ReachConfig]):
    """The task of one process."""

    def __init__(self, config: ReachConfig, world: World) -> None:
        super().__init__(config, world, config.data.on_broken)
        data = config.data
        self.train, self.test = ReachDataset(data, "train"), ReachDataset(data, "test")
        self.problem: Problem = self.train.problem
        self.sampler = create_train_sampler(len(self.train), config.optim, config.run.seed, world)
        self.train_loader = create_loader(self.train, self.sampler, collate_posed, data.workers, world.device)
        eval_sampler = EvalSampler(len(self.test), config.optim.batch_size, world)
        self.eval_loader = create_loader(self.test, eval_sampler, collate_posed, min(1, data.workers), world.device)
        self.drawn: list[Drawn] = []

    def build_model(self, resumed: bool = False) -> nn.Module:
        return build_reach(self.config, self.model_config(resumed), report=self.world.is_main and not resumed)

    def loss(self, model: nn.Module, batch: ReachBatch) -> Tensor:
        self.check_batch(batch)
        output = model(to_device(batch.x, self.world.device)).float()
        return self._loss_of(output, to_device(batch.target, self.world.device))

    def _loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        if self.problem.kind == "values":
            return (output - target).abs().mean()
        return F.cross_entropy(output, target, ignore_index=IGNORED)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        self.drawn = []
        losses = torch.zeros(2, dtype=torch.float64)  # sum, count

        def add_loss(output: Tensor, target: Tensor) -> None:
            losses.add_(torch.tensor([float(self._loss_of(output, target)) * len(target), float(len(target))]))

        scores = score_batches(
            self.problem, model, self.eval_loader, self.world.device, self._keep, self.broken.record, add_loss
        )
        total, count = all_reduce_sum(losses, self.world.device).tolist()
        return {"score": sum(scores) / len(scores), "val_loss": total / count}

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """The entries of this task in the manifest."""
        side = self.config.data.size_px
        splits = {"train": self.train, "test": self.test}
        return {
            "examples": {name: len(split) for name, split in splits.items()},
            "split_hash": {name: split.fingerprint() for name, split in splits.items()},
            "parameters": count_parameters(model),
            "macs": count_macs(model.eval(), side, side),
        }

    def data_summary(self) -> str:
        return data_summary(self.problem.classes, {"train": len(self.train), "test": len(self.test)})

    def metadata(self) -> dict[str, str]:
        """The metadata of the exported weights."""
        return {"architecture": self.config.model.name, "in_chans": str(self.problem.inputs)}

    def draw(self, history: list[dict[str, float]], folder: Path) -> None:
        title = run_title(self.config, folder)
        draw_learning(history, folder / "learning.png", {"score": score_label(self.problem)}, "test", title)
        if self.drawn:
            draw_examples(self.problem, self.drawn, folder / "examples.png", title)

    def summary(self, best: dict[str, float]) -> str:
        return f"{score_label(self.problem)}: {best['score']:.2f}"

    def _keep(self, drawn: Drawn) -> None:
        if len(self.drawn) < _DRAWN:
            self.drawn.append(drawn)


def score_label(problem: Problem) -> str:
    return {"labels": "right, %", "values": "PSNR, dB"}[problem.kind]


def build_reach(config: ReachConfig, network: ModelConfig, report: bool = True) -> nn.Module:
    """Create the network with random weights or those of a checkpoint."""
    problem, size_px = config.data.create_problem(), config.data.size_px
    given = model_arguments(network)

    def make() -> ReachNet:
        map_px = -(-size_px // given.get("patch_px", 1))
        return ReachNet(problem.inputs, problem.outputs, **{"map_px": map_px, **given})

    model = create(network.name, make)
    if network.init is not None:
        loaded = warm_start(model, initial_state(network)[0])
        if report:
            say_lines(loaded)
    return model


@torch.inference_mode()
def run_network(model: nn.Module, x: Tensor) -> list[Array]:
    """The output for each picture of a batch, (H, W, outputs)."""
    return list(model(x).float().permute(0, 2, 3, 1).cpu().numpy())


def score_batches(
    problem: Problem,
    model: nn.Module,
    batches: Iterable[ReachBatch],
    device: torch.device,
    keep: Any = lambda _drawn: None,
    record: Any = lambda _broken: None,
    on_outputs: Any = lambda _outputs, _target: None,
) -> list[float]:
    """The score of every test example over all processes."""
    scores: list[float] = []
    broken: list[Broken] = []
    for batch in batches:
        record(batch.broken)
        broken += batch.broken
        if not len(batch):
            continue
        outputs = run_network(model, to_device(batch.x, device))
        on_outputs(torch.from_numpy(np.stack(outputs)).permute(0, 3, 1, 2), batch.target)
        for example, output in zip(batch.examples, outputs, strict=True):
            scores.append(problem.score(example, output))
            keep(Drawn(example, output, scores[-1]))
    everywhere = [score for share in all_gather(scores) for score in share]
    if not everywhere:
        raise ValueError(f"no test example could be read; the first: {broken[0]}" if broken else "there are no test examples")
    return everywhere
