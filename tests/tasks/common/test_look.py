"""What every figure shares: colours, fonts, titles, headings, ticks."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from tailprop.engine.config import ModelConfig
from tailprop.tasks.classify.config import ClassifyConfig, DataConfig
from tailprop.tasks.common import figures, fonts
from tailprop.tasks.common.figures import draw_learning, run_title
from tailprop.tasks.common.fonts import families_for, load_font, missing_characters
from tailprop.tasks.common.look import COLORS, look, new_figure, set_title
from tailprop.tasks.common.pages import GAP_PX, draw_page
from tailprop.tasks.common.palette import as_seen, class_color
from tailprop.tasks.restore.figures import richest_detail
from tailprop.tasks.segment.draw import draw_labels, legend

CAT = "\u732b"
NOWHERE = "\U000e0fff"  # a private character that no font has


def smallest_distance(colors: np.ndarray) -> float:
    seen = as_seen(colors)
    apart = np.linalg.norm(seen[:, :, None] - seen[:, None], axis=-1)
    return float((apart + 1e3 * np.eye(len(colors))).min())


def test_classes_differ_for_every_kind_of_vision() -> None:
    """A just noticeable difference in CIELAB is about 2.3."""
    colors = np.array([class_color(i) for i in range(150)])
    assert smallest_distance(colors) > 5
    assert smallest_distance(colors[:20]) > 15
    assert class_color(0) == tuple(int(COLORS[0][i : i + 2], 16) for i in (1, 3, 5))
    assert class_color(3 + 160) == class_color(3)


def test_vision_without_red_cones_confuses_red_and_green() -> None:
    normal, protan, deutan = as_seen(np.array([[170, 0, 0], [90, 90, 0]]))
    assert np.linalg.norm(normal[0] - normal[1]) > 50
    assert min(np.linalg.norm(seen[0, 1:] - seen[1, 1:]) for seen in (protan, deutan)) < 15
    white = as_seen(np.array([[255, 255, 255]]))
    assert white[:, 0] == pytest.approx(np.tile([100, 0, 0], (3, 1)), abs=0.6)


def test_the_look_ends() -> None:
    before = matplotlib.rcParams["axes.spines.top"]
    with look():
        assert matplotlib.rcParams["axes.spines.top"] is False
    assert matplotlib.rcParams["axes.spines.top"] == before


def test_long_titles_are_wrapped() -> None:
    figure = new_figure(4, 2)
    set_title(figure, "a run with a long name, " * 6, "price in $")
    lines = figure.get_suptitle().splitlines()
    assert len(lines) > 3
    assert max(map(len, lines)) <= 42
    assert lines[-1] == r"price in \$"


# Fonts


def test_characters_of_matplotlibs_font_need_no_other() -> None:
    assert families_for(["dog", "жωñλ"]) == ["DejaVu Sans"]
    assert missing_characters(["dog", "жωñλ\n"]) == ""


def test_character_without_a_font(capsys: pytest.CaptureFixture[str]) -> None:
    fonts.warn_of_missing_characters.cache_clear()
    fonts.warn_of_missing_characters("")
    for _ in range(2):
        fonts.warn_of_missing_characters(CAT)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"no installed font has '{CAT}'" in said


def test_a_font_that_has_the_characters_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fonts that stand for installed ones; only the second has the character."""
    known = {"sans.ttf": frozenset(map(ord, "ab")), "cjk.ttf": frozenset(map(ord, "b" + CAT))}
    default = fonts._default_path()
    monkeypatch.setattr(fonts, "_installed", lambda: (("sans.ttf", "Some Sans"), ("cjk.ttf", "Some CJK")))
    monkeypatch.setattr(fonts, "_characters", lambda path: known.get(path, frozenset(map(ord, "abc"))))
    assert families_for(["a" + CAT]) == ["DejaVu Sans", "Some CJK"]
    assert missing_characters(["a" + CAT]) == ""
    assert missing_characters(["xb"]) == "x"
    assert fonts._best_font(frozenset("b" + CAT)) == "cjk.ttf"
    assert fonts._best_font(frozenset("abc")) == default


def test_every_installed_font_can_be_asked() -> None:
    installed = [path for path, _ in fonts._installed()]
    assert installed
    assert all(isinstance(fonts._characters(path), frozenset) for path in installed)
    assert load_font(12, "a").getlength("aa") > 5


# Learning curves


def learning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured_on: str) -> list[Axes]:
    """The panels of a learning curve of five epochs, evaluated in three of them."""
    drawn = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, _path: drawn.append(figure))
    history = [{"epoch": float(e), "loss": 3.0 / e} for e in range(1, 6)]
    for row, top1 in zip(history[::2], (20.0, 70.0, 60.0), strict=True):
        row |= {"top1": top1, "val_loss": 2.0 / row["epoch"]}
    draw_learning(history, tmp_path / "x.png", {"top1": "top-1, %"}, measured_on, "run, model, data")
    assert drawn[0].get_suptitle() == "run, model, data"
    return drawn[0].axes


def test_learning_curves_have_both_losses_and_whole_epochs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left, right = learning(monkeypatch, tmp_path, "validation")
    assert left.get_ylabel() == "top-1, % on validation images"
    assert [text.get_text() for text in left.texts] == ["70.0"]
    losses = {str(line.get_label()): list(line.get_ydata()) for line in right.lines}
    assert losses["training loss"] == pytest.approx([3.0, 1.5, 1.0, 0.75, 0.6])
    assert losses["validation loss"] == pytest.approx([2.0, 2 / 3, 0.4])
    for axes in (left, right):
        assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_learning_curves_say_that_training_images_were_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left, right = learning(monkeypatch, tmp_path, "training images")
    assert left.get_ylabel() == "top-1, % on training images"
    assert "evaluation loss" in [line.get_label() for line in right.lines]


def test_title_of_a_run() -> None:
    config = ClassifyConfig(model=ModelConfig(name="tailprop_pico", args={"mixer": "heat"}), data=DataConfig(source="digits"))
    assert run_title(config, Path("runs/first")) == "first, tailprop_pico with heat, digits"


# Pages and label maps


def test_headings_stand_above_every_column(tmp_path: Path) -> None:
    images = [Image.new("RGB", (50, 40), "red")] * 4
    for name, extra in (("plain", {}), ("named", dict(headings=("truth", "prediction"), title="run"))):
        draw_page(images, tmp_path / f"{name}.png", 4, 50, **extra)
    with Image.open(tmp_path / "plain.png") as plain, Image.open(tmp_path / "named.png") as named:
        assert plain.size == (200 + 3 * GAP_PX, 40)
        top = named.height - 40
        assert top > 40
        assert np.array_equal(np.asarray(named)[top:], np.asarray(plain))
        text = np.asarray(named.convert("L"))[top - 26 : top] < 128
    columns = [text[:, i * (50 + GAP_PX) : i * (50 + GAP_PX) + 50].sum() for i in range(4)]
    assert min(columns) > 10
    assert columns[0] == columns[2] != columns[1] == columns[3]


def test_legend_leaves_out_what_would_be_nothing() -> None:
    names = ["ground", "speck"]
    with_speck, without = legend(np.array([9990, 10]), names, 300), legend(np.array([9996, 4]), names, 300)
    speck = class_color(1)
    assert (np.asarray(with_speck) == speck).all(-1).any()
    assert not (np.asarray(without) == speck).all(-1).any()


def test_touching_classes_have_an_edge() -> None:
    labels = np.zeros((80, 80), dtype=np.int64)
    labels[:, 40:] = 1
    image = Image.new("RGB", (80, 80), (200, 30, 30))
    pixels = np.asarray(draw_labels(image, labels)).astype(int)
    assert pixels[10, 39].sum() < 0.4 * min(pixels[10, 20].sum(), pixels[10, 60].sum())
    assert pixels[10, 38].tolist() == pixels[10, 20].tolist()


def test_detail_is_where_the_edges_are() -> None:
    image = np.full((100, 150, 1), 128, dtype=np.uint8)
    image[60:80:2, 90:120] = 0
    rows, columns = richest_detail(image)
    assert (rows.stop - rows.start, columns.stop - columns.start) == (20, 30)
    assert abs(rows.start - 60) <= 2
    assert abs(columns.start - 90) <= 2
