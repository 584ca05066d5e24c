"""The figures of the paper, and some of ours, from any checkpoint. A new one is a file and a row in `FIGURES`."""

from typing import Final

__all__ = ["FIGURES", "LEAST_PX", "MOST_PX", "NEED_NOTHING"]

# name: what it shows. The module of that name has a function `draw(inputs, tick)` that returns pictures.
FIGURES: Final = {
    "receptive_field": "effective receptive fields, untrained and trained, one column for each checkpoint",
    "gates": "images with low, intermediate and high lambda, and the responses they induce",
    "impulse": "the response to a centred impulse with learned scales, from lambda = 0 to 1",
    "sources": "the same for sources at the centre, between, and near a corner",
    "diagnostics": "lambda, effective Cauchy contribution, response-only score and high-frequency energy by stage",
    "complexity": "time and memory of the operators over the number of tokens",
    "kernels": "Gaussian and Cauchy kernels in space and frequency, and an animation over lambda",
}
NEED_NOTHING: Final = ("complexity", "kernels")  # figures without a checkpoint and without images
LEAST_PX, MOST_PX = 32, 1024  # of an image; four stages need 32
