"""`tailprop bench detect`: multiply-adds, images per second and memory of Mask R-CNN over several backbones.

Weights are random and the score threshold is 0, so every image gets the maximum of 100 detections; a trained detector has less
to do. Rounds are interleaved and the best round of each model counts, as in `tailprop bench`. Peak memory is measured in a
separate process for each model.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Final

import torch
from torch import Tensor

from tailprop.backbone.cost import count_parameters
from tailprop.engine.config import ModelConfig
from tailprop.runtime.memory import peak_bytes
from tailprop.runtime.provenance import provenance
from tailprop.tasks.common.bench import ImageCost, print_costs, time_in_turn, use_cpu, write_costs
from tailprop.tasks.detect.model import Detector, create_detector, detector_macs
from tailprop.tasks.detect.options import SWIN, BenchDetect
from tailprop.utils.text import say

PAPER_SIZE: Final = (800, 1280)  # height and width at which the paper counts multiply-adds
PAPER_GMACS: Final = {
    "tailprop_tiny": 271,
    "tailprop_small": 346,
    "tailprop_base": 432,
    "vheat_tiny": 272,
    "vheat_small": 348,
    "vheat_base": 432,
    "waveformer_tiny": 270,
    "waveformer_small": 345,
    "waveformer_base": 431,
    "convnext_tiny": 262,
    SWIN: 267,
}
PAPER_RATES = {"tailprop_tiny": 31.1, "tailprop_small": 24.7, "tailprop_base": 19.3, "convnext_tiny": 29.3}
PAPER_RATES |= {SWIN: 26.3, "vheat_tiny": 32.7, "vheat_small": 25.9, "vheat_base": 20.2}  # images per second on an A100
PAPER_RATES |= {"waveformer_tiny": 32.1, "waveformer_small": 26.2, "waveformer_base": 20.4}


def run(options: BenchDetect) -> None:
    options.check()
    use_cpu(options.threads)
    costs = measure(options)
    where = provenance(options.device) | dict(dtype="float32", height=str(options.height), width=str(options.width))
    print_costs(costs, where)
    is_paper_size = (options.height, options.width) == PAPER_SIZE
    if is_paper_size and (rates := [f"{name} {PAPER_RATES[name]}" for name in options.models if name in PAPER_RATES]):
        say(f"the paper's images per second, on an A100: {', '.join(rates)}")
    if options.out is not None:
        write_costs(options.out, costs, where)


def measure(options: BenchDetect) -> list[ImageCost]:
    seconds = _time_all(options) if options.rounds > 0 else {}
    return [
        ImageCost(
            name,
            *_count(name, options),
            papers_gmacs(name, options),
            seconds.get(name, ()),
            _memory(name, options) if options.memory and options.rounds > 0 else None,
        )
        for name in options.models
    ]


def papers_gmacs(name: str, options: BenchDetect) -> float | None:
    """The paper's GMACs; None if it has no number for this model and image size."""
    return PAPER_GMACS.get(name) if (options.height, options.width) == PAPER_SIZE else None


def build(name: str, options: BenchDetect) -> Detector:
    """A detector with random weights that runs on the image at its original size."""
    short, long = sorted((options.height, options.width))
    detector, _ = create_detector(ModelConfig(name=name), options.classes, short, long, options.detector)
    return detector.eval()


def _count(name: str, options: BenchDetect) -> tuple[int, int]:
    with torch.device("meta"):
        detector = build(name, options)
    return count_parameters(detector), detector_macs(detector, options.height, options.width)


def _image(options: BenchDetect) -> Tensor:
    return torch.rand(3, options.height, options.width, generator=torch.Generator().manual_seed(0)).to(options.device)


def _time_all(options: BenchDetect) -> dict[str, list[float]]:
    torch.manual_seed(0)
    image = _image(options)
    steps = {name: _step(build(name, options).to(options.device), image) for name in options.models}
    return time_in_turn(steps, options.rounds, options.device, "detecting")


def _step(model: Detector, image: Tensor) -> Callable[[], object]:
    def step() -> None:
        with torch.inference_mode():
            model([image])

    return step


def _memory(name: str, options: BenchDetect) -> float:
    """Peak memory of a new process for one image, in GB; on CUDA, the memory allocated on the GPU."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_peak_gb, name, options).result()
        except BrokenProcessPool:
            raise ValueError(f"the process that measures {name} died, perhaps out of memory; use --no-memory") from None


def _peak_gb(name: str, options: BenchDetect) -> float:
    use_cpu(options.threads)
    model = build(name, options).to(options.device)
    with torch.inference_mode():
        model([_image(options)])
    return (torch.cuda.max_memory_allocated() if options.device == "cuda" else peak_bytes()) / 1e9
