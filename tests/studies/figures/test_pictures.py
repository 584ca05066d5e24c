"""The figures as they are seen: no clipped or overlapping text, letters of a readable size, and colours that mean one thing."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from tailprop.studies.figures import complexity, diagnostics, gates, impulse, kernels, receptive_field, sources
from tailprop.studies.figures.inputs import Inputs
from tailprop.tasks.common.look import CAUCHY, GAUSSIAN
from tests.helpers.figures import inputs_of, nothing, write_images, write_network
from tests.studies.figures.test_csv import edit, only, wide

LEAST_PT, MOST_INCHES = 8, 10.3  # of letters, and of the width of a figure


def check_texts(figure: Figure) -> None:
    """Everything lies inside the figure, titles and headings do not touch, and letters are not too small for the width."""
    figure.canvas.draw()
    width, height = figure.get_size_inches()
    assert width <= MOST_INCHES
    drawn = figure.get_tightbbox()
    assert drawn.x0 >= 0, "clipped at the left"
    assert drawn.y0 >= 0, "clipped at the bottom"
    assert drawn.x1 <= width, "clipped at the right"
    assert drawn.y1 <= height, "clipped at the top"
    titles = [getattr(figure, "_suptitle", None), *(title for axes in figure.axes for title in titles_of(axes))]
    boxes = [(title.get_text(), title.get_window_extent()) for title in titles if title and title.get_text()]
    for (first, box), (second, other) in combinations(boxes, 2):
        assert not box.overlaps(other), f"{first!r} and {second!r} overlap"
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        assert not text.get_text().strip() or text.get_fontsize() >= LEAST_PT, text.get_text()


def titles_of(axes: Axes) -> list[Text]:
    return [axes.title, axes._left_title]  # type: ignore[attr-defined]


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complexity, "SIDES", (4, 6, 8, 10))
    monkeypatch.setattr(receptive_field, "LEAST_PX", 32)
    monkeypatch.setattr(kernels, "FRAMES", 2)
    monkeypatch.setattr(kernels, "SIDE", 33)


@pytest.mark.usefixtures("_small")
def test_no_text_is_clipped(tmp_path: Path) -> None:
    """Five networks side by side, the third with a name that is longer than a line and seeds of its own."""
    long = tmp_path / ("a long name of a run, " * 4)
    runs = [
        write_network(tmp_path / "attention", mixer="attention", mixer_args=dict(head_dim=8)),
        write_network(tmp_path / "heat", mixer="heat"),
        write_network(long / "seed0"),
        write_network(long / "seed1", seed=1),
        write_network(tmp_path / "multiscale", mixer="multiscale"),
        write_network(tmp_path / "adaptive", mixer="adaptive_alpha"),
    ]
    inputs = inputs_of(*runs, images=write_images(tmp_path / "images", 3), count=3, map_px=17)
    for module in (receptive_field, gates, impulse, sources, diagnostics, complexity, kernels):
        for picture in module.draw(inputs, nothing):
            check_texts(picture.figure)


def test_colours_of_the_mix_are_those_of_the_kernels(tmp_path: Path) -> None:
    """A high lambda is Gaussian, a low one Cauchy: in the gates, in the impulse, and in the kernels."""
    inputs = inputs_of(write_network(tmp_path / "run"), images=write_images(tmp_path / "images", 3), count=3, map_px=17)
    lines = {line.get_label(): line for line in only(gates.draw(inputs, nothing)).figure.axes[-2].lines}
    assert same_color(lines["low \u03bb"].get_color(), CAUCHY)
    assert same_color(lines["high \u03bb"].get_color(), GAUSSIAN)
    decay = {line.get_label(): line for axes in only(impulse.draw(inputs, nothing)).figure.axes for line in axes.lines}
    assert same_color(decay["\u03bb = 0"].get_color(), CAUCHY)
    assert same_color(decay["\u03bb = 1"].get_color(), GAUSSIAN)
    assert len({line.get_linestyle() for line in lines.values()}) == 3  # also for those who see no colours


def test_a_single_network_is_named_in_every_title(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receptive_field, "LEAST_PX", 32)
    run = write_network(tmp_path / "run", mixer="multiscale")
    inputs = inputs_of(run, images=write_images(tmp_path / "images", 3), count=3)
    for picture in receptive_field.draw(inputs, nothing):
        title = picture.figure.get_suptitle().replace("\u00a0", " ").replace("\n", " ")
        assert "tailprop_pico with multiscale, digits at 64 px, top-1 62.2 %" in title


def varied_gates(folder: Path, k_g: float, k_c: float) -> Inputs:
    """A network whose lambda depends on the colour of an image."""
    run = write_network(folder / "run")
    wide(run, k_g, k_c)
    edit(run, lambda name, value: 200 * value if "gate_mlp.fc1.weight" in name else value)
    edit(run, lambda name, value: -value.abs() if "gate_mlp.fc2.weight" in name else value)  # channels do not cancel
    (folder / "images").mkdir()
    for number in range(8):
        Image.new("RGB", (64, 64), (36 * number, 100, 255 - 36 * number)).save(folder / "images" / f"{number}.png")
    return inputs_of(run, images=folder / "images", count=8)


@pytest.mark.parametrize(
    ("scales", "beside_shows"),
    [((2.0, 1.5), "response minus intermediate"), ((4.0, 0.1), "response"), ((0.02, 0.02), "response")],
)
def test_gates_that_vary(scales: tuple[float, float], beside_shows: str, tmp_path: Path) -> None:
    """The bars are those of the images, and the last panel shows the responses where they differ most."""
    picture = only(gates.draw(varied_gates(tmp_path, *scales), nothing))
    check_texts(picture.figure)
    panels = picture.figure.axes
    heights = []
    for axes, picked in zip(panels[3:6], gates.PICKED, strict=True):
        shown = [float(row["value"]) for row in picture.rows if row["picked"] == picked and row["quantity"] == "\u03bb"]
        assert [bar.get_height() for bar in axes.patches] == pytest.approx(shown, rel=1e-5)  # type: ignore[attr-defined]
        assert [text.get_text() for text in axes.texts] == [f"{value:.3f}" for value in shown]
        heights.append(np.mean(shown))
    assert heights[2] - heights[0] > 0.05
    curves, beside = panels[6:]
    by_label = {line.get_label(): line for line in curves.lines}
    low, high = (np.asarray(by_label[f"{word} \u03bb"].get_xydata()) for word in ("low", "high"))
    (shaded,) = curves.patches
    left, right = shaded.get_x(), shaded.get_x() + shaded.get_width()  # type: ignore[attr-defined]
    inside = (low[:, 0] > left) & (low[:, 0] < right)
    difference = np.abs(high[:, 1] - low[:, 1])
    assert difference[inside].mean() > 0.99 * max(
        difference[first : first + inside.sum()].mean() for first in range(len(low) - inside.sum())
    )
    assert beside.get_ylabel() == beside_shows
    assert beside.get_xlim() == pytest.approx((left, right))
    for line, name in zip(beside.lines, gates.PICKED, strict=True):
        drawn, whole = np.asarray(line.get_xydata()), np.asarray(by_label[f"{name} \u03bb"].get_xydata())
        offset = 0 if beside_shows == "response" else np.asarray(by_label["intermediate \u03bb"].get_xydata())[:, 1]
        assert drawn[:, 1] == pytest.approx(np.interp(drawn[:, 0], whole[:, 0], whole[:, 1] - offset), abs=1e-9)
