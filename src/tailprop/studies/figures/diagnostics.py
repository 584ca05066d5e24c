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
from tailprop.tasks.common.look import COLORS, look, name_panels, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["diagnose", "draw"]

LABELS: Final = {
    "gate": "mean \u03bb",
    "cauchy_share": "effective Cauchy contribution",
    "response_share": "response-only Cauchy score",
    "high_frequency": "energy above half the highest frequency",
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
    groups = inputs.with_operators("diagnostics")
    work = 1 / sum(map(len, groups.values()))
    found: dict[str, list[Stages]] = {}
    for name, group in groups.items():
        for network in group:
            images = [sample.x for sample in inputs.samples(network)]
            found.setdefault(name, []).append(diagnose(network, images, lambda done: tick(done * work)))
    figure = new_figure(8.4, 5.6)
    panels = figure.subplots(2, 2)
    for axes, score in zip(panels.flat, LABELS, strict=True):
        _draw_score(axes, score, {_name(group): found[name] for name, group in groups.items()})
    panels[0, 0].set_ylabel("/".join(dict.fromkeys(_gate_label(group[0]) for group in groups.values())))
    name_panels(panels.ravel().tolist())
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=1)
    return [Picture("diagnostics", "Stage-wise diagnostics", _note(groups, inputs), figure, _rows(groups, found))]


def _name(group: Sequence[Network]) -> str:
    """The run, or what several of them share."""
    return group[0].label if len(group) == 1 else f"{group[0].model} with {group[0].mixer}, {group[0].data}, {len(group)} seeds"


def _gate_label(network: Network) -> str:
    operator = next(o for stage in network.operators for o in stage)
    return f"mean {gate_name(operator)}"


def _draw_score(axes: "Axes", score: str, found: dict[str, list[Stages]]) -> None:
    width = 0.8 / len(found)
    for place, (name, seeds) in enumerate(found.items()):
        stages = range(len(seeds[0]))
        values = [[seed[stage][score] for seed in seeds] for stage in stages]
        means = [statistics.fmean(v) for v in values]
        spreads = [statistics.stdev(v) if len(v) > 1 else 0.0 for v in values]
        at = [1 + stage + (place - (len(found) - 1) / 2) * width for stage in stages]
        drawn = axes.bar(at, means, 0.92 * width, yerr=spreads if len(seeds) > 1 else None, capsize=3, color=COLORS[place])
        drawn.set_label(name)
        axes.bar_label(drawn, [f"{mean:.3f}" for mean in means], fontsize=7.5 if len(found) > 1 else 8.5, padding=2)
    axes.set(title=LABELS[score], xlabel="stage", xticks=range(1, 1 + len(stages)))
    axes.margins(y=0.15)


def _note(groups: dict[str, list[Network]], inputs: Inputs) -> str:
    subjects = " ".join(f"{name}: {'; '.join(network.label for network in group)}." for name, group in groups.items())
    return (
        f"{subjects} Mean over {len(inputs.photos)} images; error bars are the standard deviation over seeds. "
        "E = |DCT(X)|\u00b2; the effective contribution is \u03a3(1-\u03bb) h_C E / \u03a3 h_mix E, the response-only score "
        "the mean of (1-\u03bb) h_C / h_mix. Frequencies are relative to \u221a2 \u03c0."
    )


def _rows(groups: dict[str, list[Network]], found: dict[str, list[Stages]]) -> list[dict[str, Any]]:
    return [
        {"checkpoint": network.path, "model": network.model, "mixer": network.mixer, "stage": stage}
        | {score: f"{value:.6g}" for score, value in scores.items()}
        for name, group in groups.items()
        for network, stages in zip(group, found[name], strict=True)
        for stage, scores in enumerate(stages, start=1)
    ]
