"""Run folders of small networks with random weights, and images, for the tests of the figures."""

import csv
from pathlib import Path
from typing import Any

import timm
import torch
import yaml

from tailprop.backbone.operator import TailPropagation
from tailprop.engine.checkpoint import save_weights
from tailprop.engine.run_folder import RunFolder
from tailprop.studies.figures.inputs import Inputs
from tailprop.studies.figures.network import load_network
from tests.helpers.predicting import noise, save

SMALL: dict[str, Any] = dict(depths=[1, 2], dims=[8, 16])


def write_network(
    folder: Path, model: str = "tailprop_pico", seed: int = 0, classes: int = 5, in_chans: int = 3, **args: Any
) -> str:
    """A run folder with random weights; gates depend on the image more than after initialization."""
    folder.mkdir(parents=True, exist_ok=True)
    given = dict(name=model, in_chans=in_chans, args=SMALL | args)
    settings = dict(model=given, data=dict(source="digits", size_px=64, crop_pct=1.0), augment={})
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    for epoch, top1 in enumerate((40.5, 62.25, 61.0), start=1):
        RunFolder(folder).log({"kind": "epoch", "step": epoch, "epoch": epoch, "top1": top1})
    torch.manual_seed(seed)
    network = timm.create_model(model, num_classes=classes, in_chans=in_chans, **SMALL, **args)
    for module in network.modules():
        if isinstance(module, TailPropagation):
            perturb(module)
    names = "\n".join(map(str, range(classes)))
    save_weights(folder / "model.safetensors", network, dict(architecture=model, num_classes=str(classes), classes=names))
    return str(folder)


def perturb(operator: TailPropagation) -> None:
    for mlp in (operator.gate_mlp, operator.order_mlp):
        if mlp is not None:
            torch.nn.init.normal_(mlp.fc1.weight, std=1.0)
            torch.nn.init.normal_(mlp.fc2.weight, std=1.0)


def write_images(folder: Path, count: int = 6) -> Path:
    for seed in range(count):
        save(noise(seed, 60, 72), folder / f"{seed}.png")
    return folder


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def inputs_of(*checkpoints: str, images: Path | None = None, **options: Any) -> Inputs:
    return Inputs(tuple(load_network(where) for where in checkpoints), images, **options)


def nothing(_share: float) -> None:
    """A tick that nobody counts."""
