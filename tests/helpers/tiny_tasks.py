"""A small run of every task, on data in the working directory given by relative paths."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tailprop.data.shapes.render import SceneConfig
from tailprop.data.shapes.write import write_ade20k, write_coco
from tests.helpers import restoring
from tests.helpers.folders import jpeg, make_folder

NARROW = dict(depths=[1, 1, 1, 1], dims=[8, 16, 24, 32])
OPTIM = {"epochs": 2, "batch_size": 2, "lr": 1e-3, "lr_base_size": None, "warmup_epochs": 0, "warmup_steps": 2}
RUN = {"threads": 1, "device": "cpu", "log_every": 1, "save_every": 1, "tensorboard": False}
SCENES = SceneConfig(size_px=64)


def classify() -> dict[str, Any]:
    make_folder(Path("data"), count=4)
    for path in Path("data/val").rglob("*.jpg"):  # no copies of the training images
        path.write_bytes(jpeg(int(path.stem) + (200 if path.parent.name == "red" else 60), size=(44, 36)))
    return {
        "model": {"name": "tailprop_pico", "args": {"depths": [1, 1], "dims": [8, 16]}},
        "data": {"source": "folder", "root": "data", "size_px": 32, "crop_pct": 1.0, "workers": 0},
        "augment": {"mixup": 0.0, "cutmix": 0.0, "auto_augment": None},
    }


def detect() -> dict[str, Any]:
    write_coco(Path("data"), SCENES, 6, 3)
    small = dict(channels=16, box_width=32, mask_layers=1, candidates=50, proposals=30, score=0.0, detections=5)
    return {
        "model": {"name": "tailprop_pico", "drop_path": 0.2, "args": NARROW},
        "detector": small | {"anchor_px": [8, 16, 32, 64, 128]},
        "data": {"root": "data", "short_px": 64, "long_px": 64, "workers": 0},
        "augment": {"short_px": [48, 64]},
    }


def segment() -> dict[str, Any]:
    write_ade20k(Path("data"), SCENES, 6, 3)
    return {
        "model": {"name": "tailprop_pico", "args": NARROW},
        "segmenter": {"channels": 16, "aux_channels": 8},
        "data": {"root": "data", "short_px": 64, "long_px": 64, "workers": 0},
        "augment": {"crop_px": 48},
        "inference": {"window_px": 48, "stride_px": 32},
    }


def restore() -> dict[str, Any]:
    restoring.write_images(Path("data/train"), count=4)
    restoring.write_images(Path("data/test"), count=2, side=44)
    return {
        "model": {"name": "tailprop_ir_light", "in_chans": 1, "args": {"dim": 8, "depths": [1, 1]}},
        "data": {"train": ["data/train"], "test": "data/test", "crop_px": 16, "workers": 0},
    }


def reach() -> dict[str, Any]:
    restoring.write_images(Path("data/train"), count=4)
    restoring.write_images(Path("data/test"), count=2, side=44)
    return {
        "model": {"args": {"dim": 8, "depth": 1, "patch_px": 2}},
        "data": {"problem": "fill", "size_px": 16, "train": "data/train", "test": "data/test", "workers": 0},
    }


TASKS: dict[str, Callable[[], dict[str, Any]]] = {f.__name__: f for f in (classify, detect, segment, restore, reach)}


# options that evaluate a copy of the training images, in the folder copy, and how many there are
COPIES: dict[str, tuple[list[str], int]] = {
    "classify": (["--data.root", "copy/train"], 8),
    "detect": (
        ["--data.root", "copy", "--data.val-images", "train2017", "--data.val-json", "annotations/instances_train2017.json"],
        6,
    ),
    "segment": (
        ["--data.root", "copy", "--data.val-images", "images/training", "--data.val-labels", "annotations/training"],
        6,
    ),
    "restore": (["--data.test", "copy/train"], 4),
    "reach": (["--data.test", "copy/train"], 4),
}


def write_tiny(task: str) -> Path:
    """Write the dataset of a task and a recipe for it to the working directory."""
    settings = {"task": task, **TASKS[task](), "optim": OPTIM, "run": RUN}
    path = Path(f"{task}.yaml")
    path.write_text(yaml.safe_dump(settings))
    return path
