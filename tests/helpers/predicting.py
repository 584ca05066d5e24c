"""Run folders with random weights, and the output of `tailprop predict` for them."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import yaml
from PIL import Image

import tailprop.backbone.registry  # noqa: F401 - registers the models
from tailprop.engine.checkpoint import save_weights
from tailprop.tasks.classify import predict
from tailprop.tasks.classify.augment import eval_transform
from tailprop.tasks.classify.load import load_classifier
from tailprop.tasks.classify.options import ClassifyPredict

CLASSES = ("tench", "great white", "a, b", '[red]"x"[/red]', "naïve :cat:", "dog", "six")

load_once = functools.cache(load_classifier)


def make_run(folder: Path, in_chans: int = 3) -> str:
    """A run folder with random weights."""
    settings = dict(model=dict(name="tailprop_pico", in_chans=in_chans), data=dict(source="digits"), augment={})
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    make_weights(folder / "model.safetensors", in_chans)
    return str(folder)


def make_weights(path: Path, in_chans: int = 3) -> None:
    torch.manual_seed(3)
    model = timm.create_model("tailprop_pico", num_classes=len(CLASSES), in_chans=in_chans)
    torch.nn.init.normal_(model.head.fc.weight, std=0.15)  # far from uniform, so that predictions differ between images
    metadata = dict(architecture="tailprop_pico", num_classes=str(len(CLASSES)), classes="\n".join(CLASSES))
    save_weights(path, model, metadata)


def noise(seed: int = 0, height: int = 40, width: int = 56, channels: int = 3) -> Image.Image:
    """Coarse colours that survive JPEG and resizing."""
    grid = np.random.default_rng(seed).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    return Image.fromarray(grid.squeeze()).resize((width, height), Image.Resampling.NEAREST)


def save(image: Image.Image, path: Path, **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **settings)
    return path


def predict_json(checkpoint: str, *images: Path | str, **settings: Any) -> list[dict[str, Any]]:
    """The JSON output of `predict`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answer.json"
        predict.run(options(checkpoint, *images, out=out, **settings))
        return json.loads(out.read_text())


def options(checkpoint: str, *images: Path | str, **settings: Any) -> ClassifyPredict:
    return ClassifyPredict(checkpoint, tuple(map(str, images)), **{"size_px": 32, "device": "cpu", **settings})


def probabilities(row: dict[str, Any]) -> list[float]:
    """Probabilities by class."""
    by_index = {score["index"]: score["probability"] for score in row["predictions"]}
    return [by_index[i] for i in range(len(CLASSES))]


def expected(checkpoint: str, *images: Image.Image) -> torch.Tensor:
    """Softmax of the model on `eval_transform`'s tensors, without the command."""
    classifier = load_once(checkpoint, size_px=32)
    settings = classifier.settings
    transform = eval_transform(settings.data, settings.augment, settings.model.in_chans)
    with torch.inference_mode():
        return classifier.model(torch.stack([transform(image) for image in images])).softmax(1)


def assert_seen_as(checkpoint: str, path: Path, image: Image.Image, atol: float = 1e-6) -> None:
    (row,) = predict_json(checkpoint, path, top=99)
    torch.testing.assert_close(torch.tensor(probabilities(row)), expected(checkpoint, image)[0], atol=atol, rtol=1e-5)
