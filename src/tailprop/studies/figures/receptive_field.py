"""Effective receptive fields (Figure 1 and Appendix H of the paper), and how far they reach.

The effective receptive field is the gradient of the central position of the last feature map with respect to the image,
|d s / d x|, summed over colours and averaged over images. s is a sum over channels with random signs: an unsigned sum would
be blind to branches that end in a norm, whose channels sum to a constant.

Fields are drawn untrained, trained, and trained with the identity in place of every mixer, which shows how far the convolutions
reach by themselves. Images have at least LEAST_PX, because at 96 px the last map has 3 x 3 positions, and every field fills it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailprop.studies.figures.inputs import Inputs, Picture, Sample, Tick
from tailprop.studies.figures.network import Network, batches, untrained, without_mixers
from tailprop.tasks.common.look import COLORS, color_bar, look, new_figure, plain, set_title, wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["area_holding", "beyond", "draw", "receptive_field"]

Field = npt.NDArray[np.float64]
STATES: Final = ("untrained", "trained", "trained, mixers off")
LEAST_PX: Final = 192
MOST_IMAGES: Final = 24  # more hardly change a mean field, and each is a forward and a backward pass
DECADES: Final = 4  # of the colour scale
SHARES: Final = (0.5, 0.9)  # of the mass, whose area is measured
AREAS: Final = "above each: area that holds 50 % / 90 % of the field, % of the image"
CASES: Final = 4  # images that are drawn alone
PITCH, LEAST_PITCH, MOST_INCHES = 1.65, 1.1, 9.0  # from one column to the next, and of all columns
STYLES: Final = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


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


def beyond(field: Field, distances: Field) -> Field:
    """The share of the mass that is further away from the middle of the mass than each distance, in pixels."""
    total = max(float(field.sum()), 1e-300)
    rows, columns = np.indices(field.shape)
    middle = (field * rows).sum() / total, (field * columns).sum() / total
    away = np.hypot(rows - middle[0], columns - middle[1])
    return np.array([field[away > distance].sum() / total for distance in distances])


@dataclass(frozen=True)
class Measured:
    """The fields of a network in one state."""

    title: str  # of its column
    network: Network
    state: str
    mean: Field  # (H, W)
    areas: Field  # (N, 2): for each image, the areas of SHARES
    first: Sequence[Field]  # of the first CASES images

    @property
    def mean_areas(self) -> list[float]:
        """The areas of the mean field."""
        return [area_holding(self.mean, share) for share in SHARES]


Column = Sequence[Measured]  # of one network, a state each


@look()
def draw(inputs: Inputs, tick: Tick) -> list[Picture]:
    networks = {title: group[0].at_least(0 if inputs.fixed_px else LEAST_PX) for title, group in inputs.groups.items()}
    columns: list[Column] = []
    shown: Sequence[Sample] = ()

    def part(share: float) -> None:
        tick(share / (len(STATES) * len(networks)))

    for title, network in networks.items():
        samples = inputs.samples(network, MOST_IMAGES)
        shown = shown or samples[:CASES]
        states = (untrained(network, inputs.seed), network, without_mixers(network))
        columns.append([_measure((title, n, s), samples, inputs.seed, part) for n, s in zip(states, STATES, strict=True)])
    return [_draw_means(columns), _draw_reach(columns), _draw_cases(columns, shown)]


def _measure(what: tuple[str, Network, str], samples: Sequence[Sample], seed: int, tick: Tick) -> Measured:
    found: list[Field] = []
    for number, x in enumerate(batches([sample.x for sample in samples], 4)):
        found += [field.double().numpy() for field in receptive_field(what[1].run, x, seed + number)]
        tick(len(x) / len(samples))
    areas = np.array([[area_holding(field, share) for share in SHARES] for field in found])
    return Measured(*what, np.mean(found, axis=0), areas, found[:CASES])


def _draw_means(columns: Sequence[Column]) -> Picture:
    alone = len(columns) == 1  # then the states stand side by side
    figure = new_figure(8.4, 3.6) if alone else new_figure(1.3 + _pitch(len(columns)) * len(columns), 0.9 + 1.75 * len(STATES))
    panels = figure.subplots(1, len(STATES), squeeze=False).T if alone else figure.subplots(len(STATES), len(columns))
    last = len(STATES) - 1
    for place, column in enumerate(columns):
        for row, found in enumerate(column):
            axes = panels[row, place]
            drawn = _draw_field(axes, found.mean)
            heading = f"{found.state}\n" if alone else _heading(found, _pitch(len(columns))) if row == 0 else ""
            axes.set_title(heading + _areas(found.mean_areas), size=9)
            left = row == 0 if alone else place == 0
            axes.set_ylabel("y, px" if alone and left else f"{found.state}\ny, px" if left else "")
            axes.set_xlabel("x, px" if alone or row == last else "")
            axes.tick_params(labelleft=left, labelbottom=alone or row == last)
    color_bar(figure, drawn, panels.ravel().tolist(), "gradient over its maximum, log10")
    images = f"mean of {len(columns[0][0].areas)} images; {AREAS}"
    set_title(figure, f"Effective receptive field, {_subject(columns, single=True)}", images)
    note = (
        "|gradient| of the centre of the last feature map with respect to the image, mean over the images; the numbers are the "
        "area that holds 50 % and 90 % of its mass, in per cent of the image. With mixers off, the identity stands in their "
        "place: what is left is the reach of the convolutions. "
        + " ".join(f"{column[0].title}: {column[0].network.label}." for column in columns)
    )
    rows = [_row(found, len(found.areas), found.mean_areas, found.areas.std(0)) for column in columns for found in column]
    return Picture("receptive_field", "Effective receptive field", note, figure, rows)


def _draw_reach(columns: Sequence[Column]) -> Picture:
    """The share of each field beyond a distance, a panel for each state; for a single network one panel."""
    alone = len(columns) == 1
    figure = new_figure(6.4, 3.8) if alone else new_figure(9.6, 4.0)
    panels = figure.subplots(1, 1 if alone else len(STATES), sharey=True, squeeze=False)[0]
    rows = []
    for place, column in enumerate(columns):
        for number, found in enumerate(column):
            distances = np.arange(0, max(found.mean.shape) * 0.6, 4)
            shares = beyond(found.mean, distances)
            axes, style = panels[0 if alone else number], number if alone else place
            label = found.state if alone else found.title
            axes.plot(distances, shares, color=COLORS[style % len(COLORS)], linestyle=STYLES[style % len(STYLES)], label=label)
            axes.set_title("" if alone else found.state)
            common = _key(found)
            rows += [
                common | {"distance_px": f"{d:g}", "share_beyond": f"{s:.6g}"} for d, s in zip(distances, shares, strict=True)
            ]
    for axes in panels:
        axes.set(yscale="log", ylim=(1e-4, 1.3), xlim=(0, distances[-1]), xlabel="distance from the middle, px")
        axes.grid()
    panels[0].set_ylabel("share of the field beyond")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    set_title(figure, f"Reach of the receptive field, {_subject(columns)}")
    note = (
        "The share of the effective receptive field that lies further away than a distance from its middle. A mixer propagates "
        "as far as its curve lies above the one with mixers off."
    )
    return Picture("receptive_field_reach", "Reach of the receptive field", note, figure, rows)


def _draw_cases(columns: Sequence[Column], shown: Sequence[Sample]) -> Picture:
    pitch = _pitch(len(columns) + 1)
    figure = new_figure(1.2 + pitch * (len(columns) + 1), 0.9 + pitch * len(shown))
    panels = figure.subplots(len(shown), len(columns) + 1, squeeze=False)
    rows = []
    for case, sample in enumerate(shown):
        panels[case, 0].imshow(sample.shown, cmap="gray")
        panels[case, 0].set_title("image" if case == 0 else "")
        panels[case, 0].axis("off")
        for place, column in enumerate(columns, start=1):
            found = column[STATES.index("trained")]
            areas = found.areas[case]
            axes = panels[case, place]
            drawn = _draw_field(axes, found.first[case])
            axes.set_title((_heading(found, pitch) if case == 0 else "") + _areas(areas), size=9)
            axes.set(xticks=[], yticks=[])
            rows.append({"image": sample.name, **_row(found, 1, areas)})
    color_bar(figure, drawn, panels[:, 1:].ravel().tolist(), "gradient over its maximum, log10")
    set_title(figure, f"Receptive field of single images, trained, {_subject(columns, single=True)}", AREAS)
    note = "The same for single images and trained networks (Appendix H of the paper)."
    return Picture("receptive_field_cases", "Effective receptive field of single images", note, figure, rows)


def _pitch(columns: int) -> float:
    return max(LEAST_PITCH, min(PITCH, MOST_INCHES / columns))


def _heading(found: Measured, pitch: float) -> str:
    """The name of a column, and how well its network does."""
    lines = (found.title, found.network.score)
    return "".join(f"{plain(wrap(line, pitch - 0.15, 9))}\n" for line in lines if line)


def _areas(areas: Sequence[float] | Field) -> str:
    return f"{areas[0]:.1f} / {areas[1]:.1f}"


def _draw_field(axes: "Axes", field: Field) -> object:
    decades = np.log10(np.maximum(field / max(field.max(), 1e-300), 10.0 ** -(DECADES + 1)))
    return axes.imshow(decades, vmin=-DECADES, vmax=0, cmap="magma", extent=(0, field.shape[1], field.shape[0], 0))


def _key(found: Measured) -> dict[str, object]:
    network = found.network
    return {"checkpoint": network.path, "model": network.model, "mixer": network.mixer, "state": found.state}


def _row(found: Measured, count: int, areas: Sequence[float] | Field, spread: Field | None = None) -> dict[str, object]:
    row = _key(found) | {"images": count, "height_px": found.mean.shape[0], "width_px": found.mean.shape[1]}
    for place, share in enumerate(SHARES):
        row[f"area_{100 * share:.0f}_pct"] = round(float(areas[place]), 3)
    for place, share in enumerate(SHARES if spread is not None else ()):
        assert spread is not None
        row[f"sd_of_images_{100 * share:.0f}_pct"] = round(float(spread[place]), 3)
    return row


def _subject(columns: Sequence[Column], single: bool = False) -> str:
    networks = [column[0].network for column in columns]
    if len(networks) == 1:  # no heading names it
        return plain(networks[0].label) + ("" if single else f", {len(columns[0][0].areas)} images")
    models, data = (dict.fromkeys(values) for values in ((n.model for n in networks), (n.data for n in networks)))
    images = "" if single else f", {len(columns[0][0].areas)} images"
    return plain(f"{', '.join(models)}, {', '.join(data)}{images}")
