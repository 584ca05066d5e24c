"""Load a trained network from a run folder or exported weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tailprop.engine.run_settings import find_weights, read_settings
from tailprop.runtime.precision import autocast
from tailprop.tasks.common.models import check_finite, for_loading, load_weights
from tailprop.tasks.common.predictor import ImageInput, Predictor, to_pil
from tailprop.tasks.reach.config import ReachConfig
from tailprop.tasks.reach.data import to_input
from tailprop.tasks.reach.problems import Array, Problem
from tailprop.tasks.reach.task import build_reach, run_network

__all__ = ["ReachSolver", "load_reach"]


@dataclass(frozen=True)
class ReachSolver(Predictor[ReachConfig, Array]):
    """A network that solves a problem posed as a picture; `predict` returns the answer as a picture, uint8 (H, W, 3)."""

    @property
    def problem(self) -> Problem:
        return self.settings.data.create_problem()

    def predict_all(self, images: Sequence[ImageInput], precision: str = "fp32") -> list[Array]:
        return [self.solve(np.asarray(to_pil(image, "RGB")), precision) for image in images]

    def solve(self, picture: Array, precision: str = "fp32") -> Array:
        problem = self.problem
        x = to_input(problem, picture)[None].to(self.device)
        with autocast(self.device, precision):
            (output,) = run_network(self.model, x)
        check_finite(torch.from_numpy(output))
        return problem.draw(picture, output)


def load_reach(where: str | Path) -> ReachSolver:
    """Load a network from a run folder or exported weights."""
    weights = find_weights(where)
    config = read_settings(where, ReachConfig)
    network = build_reach(config, for_loading(config.model), report=False)
    model = load_weights(network, weights, config.model.name)
    return ReachSolver(model, config, config.data.create_problem().classes)
