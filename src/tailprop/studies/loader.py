"""`tailprop loader`: does the data loader keep up with training?

The same training steps run alternately on batches in memory and on batches that the loader reads from JPEG files, with the
augmentation of the Imagenette recipe; the ratio of the two rates is the cost of loading. By default training caches the decoded
images of a dataset as small as this one (`--data.cache-gb`); rates with and without the cache are measured.
"""

import dataclasses
import io
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import nn

from tailprop.engine.config import OptimConfig
from tailprop.engine.optim import build_optimizer
from tailprop.engine.recipes import find_recipe, read_recipe
from tailprop.engine.settings import build
from tailprop.runtime.distributed import World
from tailprop.runtime.provenance import provenance
from tailprop.tasks.classify.config import ClassifyConfig, DataConfig
from tailprop.tasks.classify.data import Batch
from tailprop.tasks.classify.task import Classification
from tailprop.tasks.common.bench import use_cpu, write_rows
from tailprop.tasks.common.models import check_model
from tailprop.utils.terminal import Console, Table
from tailprop.utils.validation import check_at_least

# Steps before a round is timed, so that batches prefetched during the previous round do not count, and the loader does not
# prefetch while another kind of batches is timed.
_SETTLE = 3


@dataclass(frozen=True)
class LoaderBench:
    """Compare the training rate with JPEG files and with tensors in memory."""

    data: Path | None = None
    """Folder of a parquet snapshot; none = JPEG crops of scikit-image's photographs."""
    model: str = "tailprop_nano"
    """Backbone."""
    size_px: int = 64
    """Image size."""
    batch_size: int = 64
    """Images per step."""
    workers: int = 1
    """Loader processes."""
    threads: int = 2
    """CPU threads of the training process."""
    steps: int = 8
    """Steps per round."""
    rounds: int = 8
    """Timed rounds; the best of each kind counts."""
    out: Path | None = None
    """CSV file for the results."""

    def check(self) -> None:
        for name, least in (("size_px", 32), ("batch_size", 1), ("workers", 0), ("threads", 1), ("steps", 1), ("rounds", 1)):
            check_at_least(name, getattr(self, name), least)
        check_model(self.model)


def run(options: LoaderBench) -> None:
    options.check()
    use_cpu(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        root = options.data or write_photographs(Path(folder))
        rates = measure(options, root)
    where = provenance() | {
        "batch_size": str(options.batch_size),
        "size_px": str(options.size_px),
        "workers": str(options.workers),
    }
    memory = max(rates["in memory"])
    table = Table("batches", "img/s, best", "img/s, median", "fraction of the rate in memory")
    for name, values in rates.items():
        table.add_row(name, f"{max(values):.1f}", f"{statistics.median(values):.1f}", f"{max(values) / memory:.3f}")
    Console().print(table)
    if options.out is not None:
        write_rows(options.out, _figures(options.model, rates), where)


def measure(options: LoaderBench, root: Path) -> dict[str, list[float]]:
    """Images per second of each round, by kind of batches."""
    world = World(0, 1, torch.device("cpu"))
    task = Classification(_config(options, root, cache_gb=0.0), world)
    model = task.build_model().train()
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.05))
    from_files, decoded_once = _endless(task), _endless(Classification(_config(options, root), world))
    ready = [next(from_files) for _ in range(2)]
    for _ in itertools.islice(decoded_once, task.sampler.steps):  # the first epoch, which fills the cache
        pass
    kinds: dict[str, Iterator[Batch]] = {
        "in memory": itertools.cycle(ready),
        "from JPEG files": from_files,
        "from JPEG files, decoded once": decoded_once,
    }
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for index in track(range(options.rounds + 1), description="rounds", transient=True):
        for kind, batches in kinds.items():
            _train(task, model, optimizer, itertools.islice(batches, _SETTLE))
            began = time.perf_counter()
            _train(task, model, optimizer, itertools.islice(batches, options.steps))
            if index > 0:
                rates[kind].append(options.steps * options.batch_size / (time.perf_counter() - began))
    return rates


def _train(task: Classification, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Batch]) -> None:
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        task.loss(model, batch).backward()
        optimizer.step()


def _endless(task: Classification) -> Iterator[Batch]:
    return itertools.chain.from_iterable(task.batches(epoch, 0) for epoch in itertools.count())


def _config(options: LoaderBench, root: Path, cache_gb: float = DataConfig.cache_gb) -> ClassifyConfig:
    config = build(ClassifyConfig, read_recipe(find_recipe("imagenette")))
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, name=options.model),
        data=dataclasses.replace(
            config.data,
            root=root,
            size_px=options.size_px,
            train_px=(),
            crop_pct=1.0,
            workers=options.workers,
            cache_gb=cache_gb,
        ),
        optim=dataclasses.replace(config.optim, batch_size=options.batch_size),
    )


def write_photographs(root: Path, count: int = 2048, side: int = 128) -> Path:
    """Write a parquet snapshot of JPEG crops (128 px, quality 75) of scikit-image's photographs."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image
    from skimage import data

    rng = np.random.default_rng(0)
    photographs = [Image.fromarray(photo) for photo in (data.astronaut(), data.chelsea(), data.coffee())]
    rows: list[dict[str, Any]] = []
    for k in range(count):
        photo = photographs[k % len(photographs)]
        x, y = rng.integers(0, photo.width - side), rng.integers(0, photo.height - side)
        buffer = io.BytesIO()
        photo.crop((int(x), int(y), int(x) + side, int(y) + side)).save(buffer, "JPEG", quality=75)
        rows.append({"image": {"bytes": buffer.getvalue(), "path": None}, "label": k % len(photographs)})
    for split, part in (("train", rows), ("validation", rows[:64])):
        path = root / f"{split}-00000-of-00001.parquet"
        pq.write_table(pa.Table.from_pylist(part), path, compression="none", use_dictionary=False)  # as Hugging Face does
    return root


def _figures(model: str, rates: dict[str, list[float]]) -> list[dict[str, str]]:
    memory = max(rates["in memory"])
    return [
        {
            "model": model,
            "batches": name,
            "img_per_s_best": f"{max(values):.2f}",
            "img_per_s_median": f"{statistics.median(values):.2f}",
            "of_in_memory": f"{max(values) / memory:.4f}",
        }
        for name, values in rates.items()
    ]
