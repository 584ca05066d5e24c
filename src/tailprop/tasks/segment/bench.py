"""`tailprop bench segment`: multiply-adds at 512x512 and images per second of UPerNet over several backbones.

Weights are random: the cost of a segmenter does not depend on them. Rounds are interleaved and the best round of each model
counts, as in `tailprop bench`. Matrix products and convolutions are counted, without the auxiliary head, which only training
uses.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from tailprop.backbone.cost import count_parameters
from tailprop.engine.config import ModelConfig
from tailprop.runtime.provenance import provenance
from tailprop.tasks.common.bench import ImageCost, print_costs, time_in_turn, use_cpu, write_costs
from tailprop.tasks.segment.model import Segmenter, create_segmenter, segmenter_macs
from tailprop.tasks.segment.options import SWIN, BenchSegment

PAPER_GMACS: Final = {  # at 512x512
    "tailprop_tiny": 234,
    "tailprop_small": 253,
    "tailprop_base": 291,
    "vheat_tiny": 235,
    "vheat_small": 254,
    "vheat_base": 293,
    "waveformer_tiny": 233,
    "waveformer_small": 252,
    "waveformer_base": 290,
    "convnext_tiny": 235,
    SWIN: 237,
}


def run(options: BenchSegment) -> None:
    options.check()
    use_cpu(options.threads)
    costs = measure(options)
    where = provenance(options.device) | dict(dtype="float32", height=str(options.height), width=str(options.width))
    print_costs(costs, where)
    if options.out is not None:
        write_costs(options.out, costs, where)


def measure(options: BenchSegment) -> list[ImageCost]:
    seconds = _time_all(options) if options.rounds > 0 else {}
    return [ImageCost(name, *_count(name, options), PAPER_GMACS.get(name), seconds.get(name, ())) for name in options.models]


def _build(name: str, options: BenchSegment) -> Segmenter:
    return create_segmenter(ModelConfig(name=name), options.classes, options.segmenter)[0].eval()


def _count(name: str, options: BenchSegment) -> tuple[int, int]:
    with torch.device("meta"):
        segmenter = _build(name, options)
    return count_parameters(segmenter), segmenter_macs(segmenter, options.height, options.width)


def _time_all(options: BenchSegment) -> dict[str, list[float]]:
    torch.manual_seed(0)
    image = torch.randn(1, 3, options.height, options.width, device=options.device)
    models = [_build(name, options).to(options.device).to(memory_format=torch.channels_last) for name in options.models]
    steps = {name: _step(model, image) for name, model in zip(options.models, models, strict=True)}
    return time_in_turn(steps, options.rounds, options.device, "segmenting")


def _step(model: Segmenter, image: Tensor) -> Callable[[], object]:
    def step() -> None:
        with torch.inference_mode():
            model(image)

    return step
