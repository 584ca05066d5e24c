"""A detector, scenes and a recipe small enough for tests."""

from pathlib import Path
from typing import Any

import yaml

from tailprop.data.formats.coco import CocoSet, Masks, read_coco
from tailprop.engine.config import ModelConfig
from tailprop.tasks.detect.config import DetectorConfig
from tailprop.tasks.detect.model import Detector, create_detector

SMALL = DetectorConfig(channels=16, box_width=32, mask_layers=1, anchor_px=(8, 16, 32, 64, 128), candidates=50, proposals=30)
SWIN = "swin_tiny_patch4_window7_224"
NARROW = dict(depths=[1, 1, 1, 1], dims=[8, 16, 24, 32])


def small_detector(name: str = "tailprop_pico", **args: Any) -> Detector:
    return create_detector(ModelConfig(name=name, args=args), 3, 64, 96, SMALL)[0]


def validation_set(root: Path, masks: Masks = "yes") -> CocoSet:
    return read_coco(root / "annotations" / "instances_val2017.json", root / "val2017", masks)


def write_recipe(path: Path, root: Path, **changes: dict[str, Any]) -> Path:
    detector = {name: getattr(SMALL, name) for name in ("channels", "box_width", "mask_layers", "candidates", "proposals")}
    settings: dict[str, Any] = {
        "task": "detect",
        "model": {"name": "tailprop_pico", "drop_path": 0.2, "args": NARROW},
        "detector": detector | {"anchor_px": list(SMALL.anchor_px), "score": 0.0, "detections": 10},
        "data": {"root": str(root), "short_px": 64, "long_px": 64, "workers": 0},
        "augment": {"short_px": [48, 64]},
        "optim": {"epochs": 2, "batch_size": 2, "lr": 1e-3, "lr_base_size": None, "warmup_epochs": 0, "warmup_steps": 2},
        "run": {"threads": 1, "device": "cpu", "log_every": 1, "save_every": 1, "tensorboard": False},
    }
    settings = {k: (v | changes.get(k, {}) if isinstance(v, dict) else v) for k, v in settings.items()}
    path.write_text(yaml.safe_dump(settings))
    return path
