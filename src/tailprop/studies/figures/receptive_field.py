"""Effective receptive fields (Figure 1 and Appendix H of the paper).

The effective receptive field is the gradient of the central position of the last feature map with respect to the image,
|d s / d x|, summed over colours and averaged over images. s is a sum over channels with random signs: an unsigned sum would
be blind to branches that end in a norm, whose channels sum to a constant.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailprop.studies.figures.inputs import Inputs, Picture, Sample, Tick
from tailprop.studies.figures.network import Network, batches, untrained
from tailprop.tasks.common.look import color_bar, look, new_figure, set_title

__all__ = ["area_holding", "draw", "receptive_field"]

Field = npt.NDArray[np.float64]
Column = tuple[Network, list[Sample], list[list[Field]]]  # fields of every image, untrained and trained
STATES = ("untrained", "trained")
DECADES = 4  # of the colour scale
AREAS = "above each: % of the image that holds 50 % and 90 % of the field"
CASES = 4  # images that are drawn alone


def receptive_field(run: Callable[[Tensor], Tensor], x: Tensor, seed: int = 0) -> Tensor:
    """The effective receptive field of each image of a batch, (B, H, W), for a function from (B, C, H, W) to (B, h, w, C')."""
    x = x.clone().requires_grad_()
    with torch.enable_grad():
        centre = _centre(run(x))  # (B, C')
        signs = torch.randint(0, 2, centre.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
        (gradient,) = torch.autograd.grad((centre * signs.to(centre)).sum(), x)
    return gradient.abs().sum(1).detach()


def _centre(features: Tensor) -> Tensor:
    return features[:, features.shape[1] // 2, features.shape[2] // 2]


def area_holding(field: Field, share: float) -> float:
    """The smallest area that holds this share of the mass, in per cent of the image."""
    ordered = np.sort(field.ravel())[::-1]
    mass = np.cumsum(ordered)
    if mass[-1] <= 0:
        return 0.0
    return 100.0 * (int(np.searchsorted(mass, share * mass[-1] * (1 - 1e-12))) + 1) / field.size


@look()
def draw(inputs: Inputs, tick: Tick) -> list[Picture]:
    networks = [group[0] for group in inputs.groups.values()]
    columns: list[Column] = []
    for network in networks:
        samples = inputs.samples(network)
        pair = [untrained(network, inputs.seed), network]
        work = 1 / (2 * len(networks) * len(samples))
        fields = [_fields(n, samples, inputs.seed, lambda done, work=work: tick(done * work)) for n in pair]  # type: ignore[misc]
        columns.append((network, samples, fields))
    return [_draw_means(columns), _draw_cases(columns)]


def _fields(network: Network, samples: Sequence[Sample], seed: int, tick: Callable[[int], None]) -> list[Field]:
    found: list[Field] = []
    for number, x in enumerate(batches([sample.x for sample in samples], 8)):
        found += [field.double().numpy() for field in receptive_field(network.run, x, seed + number)]
        tick(len(x))
    return found


def _draw_means(columns: Sequence[Column]) -> Picture:
    alone = len(columns) == 1  # then untrained and trained stand side by side
    figure = new_figure(7.2, 4.0) if alone else new_figure(1.2 + 2.1 * len(columns), 5.7)
    panels = figure.subplots(1, 2, squeeze=False).T if alone else figure.subplots(2, len(columns), squeeze=False)
    rows = []
    for place, (network, samples, fields) in enumerate(columns):
        for row, (state, each) in enumerate(zip(STATES, fields, strict=True)):
            mean = np.mean(each, axis=0)
            areas = [area_holding(mean, share) for share in (0.5, 0.9)]
            axes = panels[row, place]
            drawn = axes.imshow(_decades(mean), vmin=-DECADES, vmax=0, cmap="magma", extent=_extent(mean))
            heading = f"{network.title}, {state}\n" if alone else f"{network.title}\n" if row == 0 else ""
            axes.set_title(f"{heading}50 %: {areas[0]:.1f}   90 %: {areas[1]:.1f}")
            left = "y, px" if alone else f"{state}\ny, px" if place == 0 else ""
            _label(axes, left, "x, px" if row or alone else "")
            rows.append(_row(network, state, len(samples), areas, mean))
    color_bar(figure, drawn, panels.ravel().tolist(), "gradient over its maximum, log10")
    set_title(figure, f"Effective receptive field, {_subject(columns)}", AREAS)
    note = (
        "|gradient| of the centre of the last feature map with respect to the image, mean over the images; the numbers are the "
        "area that holds 50 % and 90 % of its mass, in per cent of the image. "
        + " ".join(f"{network.title}: {network.label}." for network, _, _ in columns)
    )
    return Picture("receptive_field", "Effective receptive field", note, figure, rows)


def _draw_cases(columns: Sequence[Column]) -> Picture:
    count = min(CASES, len(columns[0][1]))
    figure = new_figure(2.0 + 1.75 * len(columns), 0.7 + 1.75 * count)
    panels = figure.subplots(count, len(columns) + 1, squeeze=False)
    rows = []
    for case in range(count):
        panels[case, 0].imshow(columns[0][1][case].shown, cmap="gray")
        panels[case, 0].set_title("image" if case == 0 else "")
        panels[case, 0].axis("off")
        for place, (network, samples, fields) in enumerate(columns, start=1):
            field = fields[1][case]
            areas = [area_holding(field, share) for share in (0.5, 0.9)]
            axes = panels[case, place]
            drawn = axes.imshow(_decades(field), vmin=-DECADES, vmax=0, cmap="magma", extent=_extent(field))
            axes.set_title(
                (network.title + "\n" if case == 0 else "") + f"50 %: {areas[0]:.1f}   90 %: {areas[1]:.1f}", size=8.5
            )
            axes.set(xticks=[], yticks=[])
            rows.append({"image": samples[case].name, **_row(network, "trained", 1, areas, field)})
    color_bar(figure, drawn, panels[:, 1:].ravel().tolist(), "gradient over its maximum, log10")
    set_title(figure, f"Receptive field of single images, {_subject(columns, single=True)}", AREAS)
    note = "The same for single images and trained networks (Appendix H of the paper)."
    return Picture("receptive_field_cases", "Effective receptive field of single images", note, figure, rows)


def _row(network: Network, state: str, count: int, areas: Sequence[float], field: Field) -> dict[str, object]:
    return {
        "checkpoint": network.path,
        "model": network.model,
        "mixer": network.mixer,
        "state": state,
        "images": count,
        "height_px": field.shape[0],
        "width_px": field.shape[1],
        "area_50_pct": round(areas[0], 3),
        "area_90_pct": round(areas[1], 3),
    }


def _subject(columns: Sequence[Column], single: bool = False) -> str:
    models = dict.fromkeys(network.model for network, _, _ in columns)
    data = dict.fromkeys(network.data for network, _, _ in columns)
    images = "" if single else f", {len(columns[0][1])} images"
    return f"{', '.join(models)}, {', '.join(data)}{images}"


def _decades(field: Field) -> Field:
    return np.log10(np.maximum(field / max(field.max(), 1e-300), 10.0 ** -(DECADES + 1)))


def _extent(field: Field) -> tuple[float, float, float, float]:
    return 0, field.shape[1], field.shape[0], 0


def _label(axes: object, left: str, bottom: str) -> None:
    axes.set(ylabel=left, xlabel=bottom)  # type: ignore[attr-defined]
    if not left:
        axes.set_yticklabels([])  # type: ignore[attr-defined]
    if not bottom:
        axes.set_xticklabels([])  # type: ignore[attr-defined]
