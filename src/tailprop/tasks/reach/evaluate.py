"""`tailprop eval` for the problems that need reach: the mean score over the test examples."""

import math

from tailprop.data.broken import BrokenFiles
from tailprop.data.loader import create_loader
from tailprop.data.samplers import EvalSampler
from tailprop.data.splits import Contents
from tailprop.runtime.distributed import process_group
from tailprop.runtime.precision import autocast
from tailprop.tasks.common.options import override
from tailprop.tasks.common.overlap import count_training_contents, describe_overlap
from tailprop.tasks.reach.config import ReachDataConfig
from tailprop.tasks.reach.data import ReachDataset, collate_posed
from tailprop.tasks.reach.load import load_reach
from tailprop.tasks.reach.options import ReachEval
from tailprop.tasks.reach.task import score_batches, score_label
from tailprop.utils.files import write_json
from tailprop.utils.terminal import Console

__all__ = ["run"]


def run(options: ReachEval) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        solver = load_reach(options.checkpoint)
        data = override(solver.settings.data, options.data)
        dataset = ReachDataset(data, "test")
        broken = BrokenFiles(data.on_broken, world.is_main)
        sampler = EvalSampler(len(dataset), solver.settings.optim.batch_size, world)
        loader = create_loader(dataset, sampler, collate_posed, 0, world.device)
        solver.model.to(world.device)
        with autocast(world.device, options.precision):
            scores = score_batches(dataset.problem, solver.model, loader, world.device, record=broken.record)
        if world.is_main:
            _report(options, solver.settings.data, dataset, scores)


def _report(options: ReachEval, trained: ReachDataConfig, dataset: ReachDataset, scores: list[float]) -> None:
    console = Console()
    mean = sum(scores) / len(scores)
    spread = math.sqrt(sum((score - mean) ** 2 for score in scores) / max(1, len(scores) - 1) / len(scores))
    console.print(
        f"{trained.problem}: {score_label(dataset.problem)}: {mean:.2f} ± {spread:.2f} (standard error), {len(scores)} examples"
    )
    overlap = count_training_contents(lambda: _contents(trained, "train"), lambda: _contents(dataset.data, "test"))
    if (message := describe_overlap(overlap, len(scores))) is not None:
        console.print(message)
    if options.out is not None:
        write_json(
            options.out,
            {
                "problem": trained.problem,
                "score": mean,
                "standard_error": spread,
                "examples": len(scores),
                "training_images": overlap,
            },
        )


def _contents(data: ReachDataConfig, split: str) -> Contents | None:
    """The photographs of a split; generated examples share none."""
    photos = data.open_photos("train" if split == "train" else "test")
    return Contents([], lambda _place: b"") if photos is None else photos.contents()
