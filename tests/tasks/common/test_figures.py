"""Images of a run, where their contents grow."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tailprop_cli
from tailprop.tasks.classify.figures import draw_confusion
from tests.helpers.predicting import make_run


def test_the_confusion_of_many_classes_is_one_image(tmp_path: Path) -> None:
    draw_confusion(torch.eye(500, dtype=torch.int64), [f"class {i}" for i in range(500)], tmp_path / "c.png")
    with Image.open(tmp_path / "c.png") as image:
        assert image.size == (1440, 1440)
        darkness = 255 - np.asarray(image.convert("L"), float)
    assert darkness[200:1240, 100:1400].max(1).min() > 50  # in every row the diagonal can be seen


def test_a_letter_the_font_lacks_is_no_warning(tmp_path: Path) -> None:
    draw_confusion(torch.eye(2, dtype=torch.int64), ["cat", "\N{DOG}"], tmp_path / "c.png")
    assert (tmp_path / "c.png").exists()


def test_a_confusion_of_too_many_classes_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tailprop.tasks.classify.evaluate.CONFUSION_CLASSES", 6)
    assert tailprop_cli.main(["eval", make_run(tmp_path), "--confusion", str(tmp_path / "c.png")]) == 2
    assert capsys.readouterr().err == "tailprop: --confusion draws up to 6 classes, the model has 7; leave it out\n"
