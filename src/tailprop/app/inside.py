"""The page Inside a model: an image through a checkpoint, the gate and the response of every layer, and its receptive field.

Shapes: B batch, H height, W width, C channels, F frequencies.
"""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tailprop.app.library import Loaded
from tailprop.app.messages import Bytes, magma
from tailprop.app.store import SAMPLES, Photo, sample
from tailprop.backbone.operator import TailPropagation
from tailprop.data.broken import Broken
from tailprop.data.photos import open_photos
from tailprop.studies.figures.gate import gate_name, gate_of, responses_at
from tailprop.studies.figures.network import Network, batches
from tailprop.studies.figures.receptive_field import area_holding, receptive_field

__all__ = ["compare", "field_at", "inspect"]

FREQUENCIES: Final = 64
MOST_IMAGES: Final = 48  # of the set that gates are compared over
DECADES: Final = 3  # of a receptive field
WAIT_SECONDS: Final = 10.0  # of a view for a model that is in use
_LEAST_PX: Final = 64


def require_network(loaded: Loaded) -> Network:
    if loaded.network is None:
        raise ValueError(loaded.why_not)
    return loaded.network


def inspect(loaded: Loaded, photo: Photo) -> tuple[dict[str, Any], dict[str, Bytes]]:
    """What the model says of an image, and what each of its operators did."""
    network = require_network(loaded)
    frequencies = torch.linspace(0, math.pi, FREQUENCIES)
    layers: list[dict[str, Any]] = []

    def keep(stage: int, layer: int, operator: TailPropagation, x: Tensor) -> None:
        details = operator.explain(x)
        layers.append(
            {
                "stage": stage + 1,
                "layer": layer + 1,
                "gate": float(gate_of(operator, details)[0]),
                "gate_name": gate_name(operator),
                "map": list(x.shape[1:3]),
                "response": [round(v, 5) for v in responses_at(operator, x, frequencies)[0].tolist()],
                "scales": [[float(scale.min()), float(scale.max())] for scale in details.scales],
                "orders": [float(order) for order in details.orders[0].mean(-1)],
            }
        )

    with loaded.in_use(WAIT_SECONDS):
        x, shown = network.prepare(photo.rgb, 0)
        network.visit(x[None], keep)
        answer, picture = _answer(loaded, photo)
    numbers = {
        "model": network.model,
        "mixer": network.title,
        "data": network.data,
        "score": network.score,
        "layers": layers,
        "frequencies": frequencies.tolist(),
        "answer": answer,
    }
    images = {"shown": np.asarray(shown.convert("RGB"))}
    return numbers, images if picture is None else images | {"answer": np.asarray(picture.convert("RGB"))}


def _answer(loaded: Loaded, photo: Photo) -> tuple[dict[str, Any], Image.Image | None]:
    """The prediction: classes with probabilities, or a picture."""
    predictor, task = loaded.predictor, loaded.entry.task
    image = photo.rgb
    if task == "classify":
        top = predictor.predict(image).top(5)
        classes = [{"name": _readable(one.name), "probability": one.probability} for one in top]
        return {"kind": "classes", "classes": classes}, None
    small = image.copy()
    small.thumbnail((640, 640))
    return {"kind": "picture", "text": ""}, _picture(predictor, task, small)


def _readable(name: str) -> str:
    """The words of ImageNet for the name of one of its folders, such as n03028079; other names as they are."""
    if re.fullmatch(r"n\d{8}", name) is None:
        return name
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-22k")
    return str(info.label_name_to_description(name)) if name in info.label_names() else name


def _picture(predictor: Any, task: str, image: Image.Image) -> Image.Image | None:
    if task == "detect":
        from tailprop.tasks.detect.draw import Drawn, draw_objects

        found = predictor.predict(image)
        drawn = []
        for i in reversed(range(len(found))):
            x0, y0, x1, y1 = found.boxes[i].tolist()
            mask = None if found.masks is None else found.masks[i].numpy().astype(np.uint8)
            label = int(found.labels[i])
            drawn.append(Drawn((x0, y0, x1 - x0, y1 - y0), f"{found.names[i]} {float(found.scores[i]):.2f}", label, mask))
        return draw_objects(image, drawn)
    if task == "segment":
        from tailprop.tasks.segment.draw import draw_labels, with_legend

        found = predictor.predict(image)
        return with_legend(draw_labels(image, found.labels.numpy()), found.counts.numpy(), found.names)
    answer = np.asarray(predictor.predict(image))
    return Image.fromarray(answer[..., 0] if answer.ndim == 3 and answer.shape[2] == 1 else answer[..., :3])


def compare(loaded: Loaded, folder: Path | None, tick: Callable[[float], object] = lambda _share: None) -> dict[str, Any]:
    """The gate of every operator over a set of images: a list of values by stage and layer."""
    network = require_network(loaded)
    found: dict[str, list[float]] = {}

    def keep(stage: int, layer: int, operator: TailPropagation, x: Tensor) -> None:
        values = gate_of(operator, operator.explain(x)).tolist()
        found.setdefault(f"{stage + 1}.{layer + 1}", []).extend(round(v, 5) for v in values)

    count = 0
    with loaded.in_use():
        inputs = [network.prepare(image, number)[0] for number, image in enumerate(_images(folder))]
        for x in batches(inputs, 4):
            network.visit(x, keep)
            count += len(x)
            tick(len(x) / len(inputs))
    where = "scikit-image's photographs" if folder is None else folder.name
    return {"values": {name: sorted(values) for name, values in found.items()}, "images": count, "where": where}


def _images(folder: Path | None) -> Iterator[Image.Image]:
    """Images of the folder, evenly spread; without one, the photographs that come along and their quarters."""
    if folder is None:
        for name in SAMPLES:
            image = sample(name).rgb
            yield image
            w, h = image.size
            for left, top in ((0, 0), (w // 2, 0), (0, h // 2), (w // 2, h // 2)):
                yield image.crop((left, top, left + w // 2, top + h // 2))
        return
    photos = open_photos(folder, "validation")
    count = min(MOST_IMAGES, len(photos))
    images = (photos.read(i * len(photos) // count) for i in range(count))
    readable = [image for image in images if not isinstance(image, Broken)]
    if not readable:
        raise ValueError(f"no image in {folder} can be read")
    yield from readable


def field_at(loaded: Loaded, photo: Photo, place: tuple[float, float]) -> tuple[dict[str, Any], dict[str, Bytes]]:
    """The effective receptive field of the position of the last map at a point of the image, shares of width and height."""
    network = require_network(loaded).at_least(_LEAST_PX)
    at = [0, 0, 0, 0]

    def run(x: Tensor) -> Tensor:
        """The last map, moved so that the position is in the middle, where `receptive_field` looks."""
        y = network.run(x)
        h, w = y.shape[1:3]
        row, column = min(h - 1, int(place[1] * h)), min(w - 1, int(place[0] * w))
        at[:] = [row, column, h, w]
        return y.roll((h // 2 - row, w // 2 - column), (1, 2))

    with loaded.in_use(WAIT_SECONDS):
        x, _ = network.prepare(photo.rgb, 0)
        field = receptive_field(run, x[None])[0].double().numpy()
    peak = max(float(field.max()), 1e-300)
    shown = 1 + np.log10(np.maximum(field / peak, 10.0 ** -(DECADES + 1))) / DECADES
    row, column, h, w = at
    numbers = {
        "half": round(area_holding(field, 0.5), 2),
        "most": round(area_holding(field, 0.9), 2),
        "cell": [column / w, row / h, 1 / w, 1 / h],
        "map": [h, w],
        "decades": DECADES,
    }
    return numbers, {"field": magma(shown)}
