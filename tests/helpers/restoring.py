"""A restoration run small enough for tests: a narrow network, crops of scikit-image's photographs."""

from pathlib import Path
from typing import Any

import numpy as np
import skimage.data
import yaml
from PIL import Image

SMALL: dict[str, Any] = {
    "task": "restore",
    "model": {"name": "tailprop_ir_light", "in_chans": 1, "args": {"dim": 8, "depths": [1, 1]}},
    "data": {"crop_px": 16, "workers": 0},
    "optim": {
        "epochs": 2,
        "epoch_steps": 4,
        "batch_size": 2,
        "lr": 2e-3,
        "lr_base_size": None,
        "warmup_steps": 1,
        "weight_decay": 0.0,
    },
    "run": {"threads": 1, "device": "cpu", "log_every": 1, "save_every": 2, "tensorboard": False},
}


def write_images(folder: Path, count: int = 3, side: int = 40, mode: str = "L") -> Path:
    """Small crops of photographs."""
    folder.mkdir(parents=True)
    photo = Image.fromarray(skimage.data.astronaut()).convert(mode)
    for i in range(count):
        photo.crop((60 * i, 40 * i, 60 * i + side + i, 40 * i + side)).save(folder / f"{i}.png")
    return folder


def write_recipe(path: Path, train: Path, test: Path, **changes: dict[str, Any]) -> Path:
    """A recipe of the small run, with changed settings by section."""
    settings = {k: (v | changes.get(k, {}) if isinstance(v, dict) else v) for k, v in SMALL.items()}
    settings["data"] = {"train": [str(train)], "test": str(test)} | settings["data"]
    path.write_text(yaml.safe_dump(settings))
    return path


def photograph(side: int = 64, channels: int = 3) -> np.ndarray:
    """(side, side, channels), 8 bits."""
    return np.ascontiguousarray(skimage.data.astronaut()[100 : 100 + side, 180 : 180 + side, :channels])
