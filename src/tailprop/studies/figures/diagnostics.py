"""Stage-wise diagnostics over seeds (Appendix G of the paper).

A value of an image in a stage is the mean over the operators of the stage; values are averaged over images, then over seeds.
"""

import statistics
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from tailprop.backbone.operator import TailPropagation
from tailprop.studies.figures.gate import Scores, gate_name, scores_of
from tailprop.studies.figures.inputs import Inputs, Picture, Tick
from tailprop.studies.figures.network import Network, batches
from tailprop.tasks.common.look import COLORS, look, name_panels, new_figure, plain, wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["describe", "diagnose", "draw"]

LABELS: Final = {
    "gate": "mean \u03bb",  # or the order
    "cauchy_share": "effective Cauchy contribution",
    "response_share": "response-only Cauchy score",
    "high_frequency": "energy above half the highest frequency",
}
UNITS: Final = {
    "gate": "mean over channels",
    "cauchy_share": "share of the response",
    "response_share": "mean share",
    "high_frequency": "share of the energy",
}
assert list(LABELS) == [f.name for f in fields(Scores)]
Stages = list[dict[str, float]]  # a value of each score, by stage


def diagnose(network: Network, inputs: Sequence[Tensor], tick: Tick = lambda _: None) -> Stages:
    """Every score by stage, mean over operators and images."""
    found: dict[int, dict[str, list[Tensor]]] = {}

    def keep(stage: int, _layer: int, operator: TailPropagation, x: Tensor) -> None:
        scores = scores_of(operator, operator.explain(x))
        for name in LABELS:
            found.setdefault(stage, {}).setdefault(name, []).append(getattr(scores, name))

    for x in batches(inputs):
        network.visit(x, keep)
        tick(len(x) / len(inputs))
    return [{name: float(torch.cat(v).mean()) for name, v in found[stage].items()} for stage in sorted(found)]


@look()
def draw(inputs: Inputs, tick: Tick) -> list[Picture]:
    groups = list(inputs.with_operators("diagnostics").values())
    work = 1 / sum(map(len, groups))
    found: list[list[Stages]] = []
    for group in groups:
        images = [sample.x for sample in inputs.samples(group[0])]
        found.append([diagnose(network, images, lambda done: tick(done * work)) for network in group])
    names = [describe(group) for group in groups]
    figure = new_figure(8.2, 5.6)
    panels = figure.subplots(2, 2)
    for axes, score in zip(panels.flat, LABELS, strict=True):
        _draw_score(axes, score, dict(zip(map(plain, names), found, strict=True)))
    panels[0, 0].set_title(" / ".join(dict.fromkeys(_gate_label(group[0]) for group in groups)))
    name_panels(panels.ravel().tolist())
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=1)
    return [Picture("diagnostics", "Stage-wise diagnostics", _note(groups, names, inputs), figure, _rows(groups, found))]


def describe(group: Sequence[Network]) -> str:
    """A run, or several of different seeds with the mean and standard deviation of their metric."""
    if len(group) == 1:
        return group[0].label
    parts, metrics = [group[0].subject], [network.metric for network in group if network.metric is not None]
    if len(metrics) == len(group):
        values = [metric.value for metric in metrics]
        mean, deviation = statistics.fmean(values), statistics.stdev(values)
        parts.append(f"{metrics[0].name} {mean:.1f} \u00b1 {deviation:.1f} {metrics[0].unit}".strip())
    differ = len({network.seed for network in group}) == len(group)
    return ", ".join([*parts, f"{len(group)} {'seeds' if differ else 'runs'}"])


def _gate_label(network: Network) -> str:
    operator = next(o for stage in network.operators for o in stage)
    return f"mean {gate_name(operator)}"


def _draw_score(axes: "Axes", score: str, found: dict[str, list[Stages]]) -> None:
    """Bars of means over seeds with the standard deviation, and a point for each seed."""
    width = 0.8 / len(found)
    for place, (name, seeds) in enumerate(found.items()):
        stages = range(len(seeds[0]))
        values = [[seed[stage][score] for seed in seeds] for stage in stages]
        means = [statistics.fmean(v) for v in values]
        at = [1 + stage + (place - (len(found) - 1) / 2) * width for stage in stages]
        drawn = axes.bar(at, means, 0.92 * width, color=COLORS[place % len(COLORS)], label=name)
        tops = [max(v) for v in values]
        if len(seeds) > 1:
            deviations = [statistics.stdev(v) for v in values]
            axes.errorbar(at, means, deviations, fmt="none", ecolor="black", elinewidth=1.2, capsize=4, zorder=3)
            for seed in zip(*values, strict=True):
                axes.scatter(at, seed, s=9, color="white", edgecolors="black", linewidths=0.7, zorder=4)
            tops = [max(top, mean + d) for top, mean, d in zip(tops, means, deviations, strict=True)]
        for bar, mean, top in zip(drawn, means, tops, strict=True):
            above = (bar.get_x() + bar.get_width() / 2, top)
            axes.annotate(
                f"{mean:.3f}",
                above,
                (0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                rotation=90 * (len(found) > 2),
            )
    axes.set(
        title=wrap(LABELS[score], 3.4, 10),
        ylabel=UNITS[score],
        xlabel="stage",
        xticks=range(1, 1 + max(len(seeds[0]) for seeds in found.values())),
    )
    axes.margins(y=0.15 if len(found) < 3 else 0.25)


def _note(groups: Sequence[Sequence[Network]], names: Sequence[str], inputs: Inputs) -> str:
    bars = "Error bars are the standard deviation over seeds (n - 1), points are single seeds. "
    return (
        f"{'. '.join(names)}. Mean over {len(inputs.photos)} images. {bars if max(map(len, groups)) > 1 else ''}"
        "E = |DCT(X)|\u00b2; the effective contribution is \u03a3(1-\u03bb) h_C E / \u03a3 h_mix E, the response-only score "
        "the mean of (1-\u03bb) h_C / h_mix. Frequencies are relative to \u221a2 \u03c0."
    )


def _rows(groups: Sequence[Sequence[Network]], found: Sequence[Sequence[Stages]]) -> list[dict[str, Any]]:
    return [
        {"checkpoint": n.path, "model": n.model, "mixer": n.mixer, "seed": "" if n.seed is None else n.seed, "stage": stage}
        | {score: f"{value:.6g}" for score, value in scores.items()}
        for group, seeds in zip(groups, found, strict=True)
        for n, stages in zip(group, seeds, strict=True)
        for stage, scores in enumerate(stages, start=1)
    ]
