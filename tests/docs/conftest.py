"""The working directory of code in the documentation: a folder with an image and untrained runs of every task."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from torch import nn

from tailprop.engine.checkpoint import save_weights
from tailprop.engine.recipes import find_recipe, read_recipe
from tailprop.engine.settings import build, portable, to_dict
from tailprop.tasks import find_spec

SHAPES = ("circle", "square", "star")


def read(recipe: str) -> Any:
    values = read_recipe(find_recipe(recipe))
    return build(find_spec(values["task"]).config_type(), values)


def write_run(folder: Path, config: Any, model: nn.Module, **metadata: str) -> None:
    """The files of a run folder that `tailprop.load` reads."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(to_dict(config)))
    save_weights(folder / "model.safetensors", model, metadata | {"settings": json.dumps(portable(config))})


@pytest.fixture(scope="session")
def untrained_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tailprop.tasks.classify.model import create_model
    from tailprop.tasks.detect.model import create_detector
    from tailprop.tasks.reach.task import build_reach
    from tailprop.tasks.restore.task import build_restorer
    from tailprop.tasks.segment.model import create_segmenter

    root = tmp_path_factory.mktemp("documentation")
    runs = root / "runs"
    digits, shapes = "\n".join(map(str, range(10))), "\n".join(SHAPES)
    config = read("digits")
    write_run(
        runs / "digits", config, create_model(config.model, 10, report=False), architecture=config.model.name, classes=digits
    )
    config = read("shapes_maskrcnn")
    detector, _ = create_detector(config.model, len(SHAPES), config.data.short_px, config.data.long_px, config.detector)
    write_run(runs / "shapes_maskrcnn", config, detector, classes=shapes, category_ids="[1, 2, 3]")
    config = read("shapes_upernet")
    segmenter, _ = create_segmenter(config.model, len(SHAPES), config.segmenter)
    write_run(runs / "shapes_upernet", config, segmenter, classes=shapes, first_label="1")
    config = read("train400_gray_s15")
    write_run(runs / "train400_gray_s15", config, build_restorer(config.model, report=False))
    config = read("reach_color")
    write_run(runs / "reach_color", config, build_reach(config, config.model, report=False))
    pixels = np.random.default_rng(0).integers(0, 256, (72, 96, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(root / "photo.jpg")
    return root


@pytest.fixture
def workplace(untrained_runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to the folder; mixers that the code registers are removed afterwards."""
    from tailprop.backbone.mixers import MIXERS

    known = dict(MIXERS)
    monkeypatch.chdir(untrained_runs)
    yield untrained_runs
    MIXERS.clear()
    MIXERS.update(known)
