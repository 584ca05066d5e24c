"""Figures with many classes and unusual names."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tailprop_cli
from tailprop.tasks.classify.figures import draw_confusion
from tests.helpers.predicting import make_run


def test_confusion_matrix_of_many_classes(tmp_path: Path) -> None:
    draw_confusion(torch.eye(500, dtype=torch.int64), [f"class {i}" for i in range(500)], tmp_path / "c.png")
    with Image.open(tmp_path / "c.png") as image:
        assert image.size == (1440, 1440)
        darkness = 255 - np.asarray(image.convert("L"), float)
    assert darkness[200:1240, 100:1400].max(1).min() > 50  # the diagonal is visible in every row


def test_missing_glyph_does_not_warn(tmp_path: Path) -> None:
    draw_confusion(torch.eye(2, dtype=torch.int64), ["cat", "\N{DOG}"], tmp_path / "c.png")
    assert (tmp_path / "c.png").exists()


def test_confusion_of_too_many_classes_raises_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tailprop.tasks.classify.evaluate.CONFUSION_CLASSES", 6)
    assert tailprop_cli.main(["eval", make_run(tmp_path), "--confusion", str(tmp_path / "c.png")]) == 2
    assert capsys.readouterr().err == "tailprop: --confusion supports up to 6 classes, but the model has 7; omit it\n"
