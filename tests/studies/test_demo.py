"""The figures of the demo."""

from pathlib import Path

import numpy as np
from PIL import Image

from tailprop.studies.demo_figures import DETAIL_PX, _most_different, draw_inside, draw_operator
from tailprop.tasks.classify.load import load_classifier
from tailprop.tasks.common.look import save_figure
from tests.helpers.figures import write_network


def test_operator_picture(tmp_path: Path) -> None:
    save_figure(draw_operator(), tmp_path / "operator.png")
    with Image.open(tmp_path / "operator.png") as image:
        assert image.width == 1260


def test_detail_is_where_edges_differ() -> None:
    first = np.full((200, 200, 3), 0.5)
    second = first.copy()
    second[120:140:2, 30:60] = 1.0
    row, column = _most_different(first, second)
    assert row <= 120 < 140 <= row + DETAIL_PX
    assert column <= 30 < 60 <= column + DETAIL_PX


def test_inside_shows_answers_and_lambda_of_every_layer(tmp_path: Path) -> None:
    run = Path(write_network(tmp_path, classes=10, in_chans=1))
    classifier = load_classifier(run)
    figure = draw_inside(run, classifier, most=60)
    answers, lambdas = figure.subfigs
    assert len(answers.axes) == 12
    panel = lambdas.axes[0]
    layers = [f"{stage}.{layer}" for stage, count in enumerate((1, 2), 1) for layer in range(1, count + 1)]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == layers
    assert len(panel.texts) == 10 * len(layers)
    assert all(0 < float(text.get_text()) < 1 for text in panel.texts)
    assert "of 60 answers are wrong" in figure.get_suptitle()
