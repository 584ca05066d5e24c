"""What every figure shares: colours, fonts, titles, headings, ticks."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.axes import Axes
from matplotlib.font_manager import fontManager
from matplotlib.text import Text
from PIL import Image

from tailprop.engine.config import ModelConfig
from tailprop.tasks.classify.config import ClassifyConfig, DataConfig
from tailprop.tasks.classify.figures import draw_confusion
from tailprop.tasks.common import figures, fonts
from tailprop.tasks.common.figures import draw_learning, run_title
from tailprop.tasks.common.fonts import drawable, drawable_names, families_for, load_font, missing_characters
from tailprop.tasks.common.look import COLORS, look, new_figure, set_title, wrap
from tailprop.tasks.common.pages import GAP_PX, draw_page, with_caption
from tailprop.tasks.common.palette import as_seen, class_color
from tailprop.tasks.restore.figures import richest_detail
from tailprop.tasks.segment.draw import draw_labels, legend

CAT, DOG = "\u732b", "\u72ac"


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


@pytest.mark.parametrize("name", ["a run with a long name, ", "run_" * 40, "\u0416" * 70, "iiiii WWWWW "], ids=range(4))
@look()
def test_long_titles_are_wrapped(name: str) -> None:
    figure = new_figure(4, 2)
    set_title(figure, name * 6, "price in $")
    figure.canvas.draw()
    lines = figure.get_suptitle().splitlines()
    assert "".join(lines[:-1]).replace(" ", "") == (name * 6).replace(" ", "")
    assert lines[-1] == r"price in \$"
    title: Text = figure._suptitle  # type: ignore[attr-defined]
    box = title.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.width > 0.6 * figure.bbox.width  # and not earlier than needed


def test_a_number_stays_with_its_unit() -> None:
    text = "Receptive field, drawn at 192 px, top-1 72.3 %"
    for width in np.linspace(0.8, 4, 30):
        lines = [line.replace("\u00a0", " ") for line in wrap(text, float(width), 11).splitlines()]
        assert " ".join(lines) == text
        assert not any(line.startswith(("px", "%")) for line in lines)
    assert wrap("", 4, 11) == ""


# Fonts


def test_characters_of_matplotlibs_font_need_no_other() -> None:
    assert families_for(["dog", "ж\u03c9ñλ"]) == ["DejaVu Sans"]
    assert missing_characters(["dog", "ж\u03c9ñλ\n"]) == ""


@pytest.fixture
def quiet_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No user was told anything yet, and no font is installed but those of matplotlib."""
    own = str(Path(matplotlib.get_data_path()))
    fonts._installed.cache_clear()
    installed = tuple(item for item in fonts._installed() if item[0].startswith(own))
    monkeypatch.setattr(fonts, "_installed", lambda: installed)
    monkeypatch.setattr(fonts, "_said", set())


@pytest.mark.usefixtures("quiet_fonts")
def test_characters_without_a_font_become_boxes(capsys: pytest.CaptureFixture[str]) -> None:
    """matplotlib's font of last resort has every character there is, as a box: it must not count."""
    assert families_for([CAT]) == ["DejaVu Sans"]
    assert drawable(["dog", f"a {CAT}{DOG}"]) == ["dog", f"a {fonts.BOX}{fonts.BOX}"]
    assert drawable([f"{DOG} again", "\u0e2b"])[1] == fonts.BOX  # Thai
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"no installed font has '{''.join(sorted(CAT + DOG))}'" in said
    assert drawable_names(["ant", CAT, DOG, f"{CAT}b"]) == ["ant", f"1: {fonts.BOX}", f"2: {fonts.BOX}", f"{fonts.BOX}b"]


@pytest.mark.usefixtures("quiet_fonts")
@pytest.mark.parametrize("names", [("cat", "dog"), ("кошка", "собака"), ("γάτα", "σκύλος"), (CAT, DOG), ("$a$", "^_")])
def test_confusions_of_any_class_names_are_drawn(names: tuple[str, str], tmp_path: Path) -> None:
    """Warnings are errors in the tests: matplotlib must not meet a character that it cannot draw."""
    draw_confusion(torch.tensor([[3, 1], [0, 2]]), names, tmp_path / "x.png", title=f"run {names[0]}")
    page = with_caption(Image.new("RGB", (50, 40)), names, 200)
    assert (np.asarray(page)[40 * 4 :] < 128).any()


def test_an_installed_font_is_found_and_drawn(tmp_path: Path) -> None:
    """A real font file with one character, a filled square: the picture has it, in matplotlib and in Pillow."""
    path = write_font(tmp_path / "squares.ttf", "Squares Sans", CAT)
    before = list(fontManager.ttflist)
    fontManager.addfont(path)
    fonts._installed.cache_clear()
    load_font.cache_clear()
    try:
        assert families_for(["a" + CAT]) == ["DejaVu Sans", "Squares Sans"]
        assert missing_characters([CAT + DOG]) == DOG
        assert fonts._best_font(frozenset(CAT)) == str(path)
        text = np.asarray(with_caption(Image.new("RGB", (50, 50), "white"), [CAT], 50).convert("L"))
        assert (text < 10).sum() > 60  # a square of 14 px less its margins
        draw_confusion(torch.tensor([[3, 0], [0, 2]]), [CAT, "b"], tmp_path / "x.png")
        assert largest_black_square(tmp_path / "x.png") >= 8
        draw_confusion(torch.tensor([[3, 0], [0, 2]]), ["a", "b"], tmp_path / "y.png")
        assert largest_black_square(tmp_path / "y.png") < 8
    finally:
        fontManager.ttflist[:] = before
        fonts._installed.cache_clear()
        load_font.cache_clear()


def write_font(path: Path, family: str, character: str) -> Path:
    builder, pen = FontBuilder(1000, isTTF=True), TTGlyphPen(None)
    for number, corner in enumerate(((100, 0), (100, 800), (900, 800), (900, 0))):
        (pen.lineTo if number else pen.moveTo)(corner)
    pen.closePath()
    builder.setupGlyphOrder([".notdef", "square"])
    builder.setupCharacterMap({ord(character): "square"})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "square": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (1000, 0), "square": (1000, 100)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return path


def largest_black_square(path: Path) -> int:
    with Image.open(path) as image:
        black = (np.asarray(image.convert("RGB")).max(-1) < 60).astype(int)
    side = 0
    while black.any():  # erode by a pixel at a time
        black = black[1:, 1:] & black[:-1, 1:] & black[1:, :-1] & black[:-1, :-1]
        side += 1
    return side


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
    assert right.get_ylim() == pytest.approx((0, 1.06 * 3.0))  # the highest point is drawn whole
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
