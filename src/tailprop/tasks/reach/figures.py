"""Figures of examples: the picture, the answer of a network, the solution."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tailprop.tasks.common.look import look, new_figure, save_figure, set_title
from tailprop.tasks.reach.problems import Array, Example, Problem

__all__ = ["Drawn", "draw_examples"]


@dataclass(frozen=True)
class Drawn:
    """An example with a network's output and its score."""

    example: Example
    output: Array
    score: float


@look()
def draw_examples(problem: Problem, drawn: Sequence[Drawn], path: Path, title: str = "") -> None:
    """Draw one row per example."""
    figure = new_figure(7.5, 2.6 * len(drawn))
    for number, (row, item) in enumerate(zip(figure.subplots(len(drawn), 3, squeeze=False), drawn, strict=True)):
        answer, solution = problem.draw(item.example.picture, item.output), _solution(problem, item.example)
        unit = "dB" if problem.kind == "values" else "%"
        headings = ("picture", f"answer: {item.score:.1f} {unit}", "solution")
        for axes, image, heading in zip(row, (item.example.picture, answer, solution), headings, strict=True):
            axes.imshow(image, interpolation="nearest")
            axes.set_title(heading if number == 0 or heading.startswith("answer") else "", fontsize=9)
            axes.axis("off")
    if title:
        set_title(figure, title)
    save_figure(figure, path)


def _solution(problem: Problem, example: Example) -> Array:
    """The solution as a picture: the drawing of a perfect output."""
    if problem.kind == "values":
        return problem.draw(example.picture, example.target)
    return problem.draw(example.picture, np.eye(problem.outputs)[example.target])
