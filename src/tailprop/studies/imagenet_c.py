"""ImageNet-C as published: 15 corruptions at five severities, and mCE, the error relative to AlexNet's.

The folder has one for each corruption, and in it 1 to 5 with a folder for each class. The published archives (noise, blur,
weather, digital) unpack to such folders, also one level deeper. Its images have 224 px already and are not cropped again.

CE of a corruption is its mean error over the severities over AlexNet's, mCE the mean of the CEs (Hendrycks and Dietterich 2019,
section 4). AlexNet's errors are those of the authors' code, https://github.com/hendrycks/robustness, means over the severities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tailprop.utils.terminal import Console, Table
from tailprop.utils.text import did_you_mean, listed

__all__ = ["ALEXNET_ERRORS", "SEVERITIES", "CorruptedFolder", "corruption_error", "find_corruptions", "print_errors"]

SEVERITIES: Final = (1, 2, 3, 4, 5)
ALEXNET_ERRORS: Final = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
EXTRA: Final = ("speckle_noise", "gaussian_blur", "spatter", "saturate")  # published for validation; not in mCE
ARCHIVES: Final = ("noise", "blur", "weather", "digital", "extra")


@dataclass(frozen=True)
class CorruptedFolder:
    """The images of a corruption at a severity, in a folder for each class."""

    corruption: str
    severity: int
    path: Path


def find_corruptions(root: Path) -> list[CorruptedFolder]:
    """The folders of the 15 corruptions that are there, in the order of the paper, with all five severities of each."""
    places = [root, *(root / name for name in ARCHIVES)]
    folders = {path.name: path for place in places if place.is_dir() for path in sorted(place.iterdir()) if path.is_dir()}
    found = [name for name in ALEXNET_ERRORS if name in folders]
    unknown = sorted(set(folders) - {*ALEXNET_ERRORS, *EXTRA, *ARCHIVES})
    if unknown:
        raise ValueError(f"{root} has a folder {unknown[0]}, which is no corruption; {_hint(unknown[0])}")
    if not found:
        raise ValueError(f"{root} has no folder of a corruption, such as {root / 'gaussian_noise' / '1'}")
    for name in found:
        if missing := [level for level in SEVERITIES if not (folders[name] / str(level)).is_dir()]:
            raise ValueError(f"{folders[name]} has no folder {missing[0]}; a corruption has the severities 1 to 5")
    return [CorruptedFolder(name, level, folders[name] / str(level)) for name in found for level in SEVERITIES]


def _hint(name: str) -> str:
    return did_you_mean(name, tuple(ALEXNET_ERRORS), otherwise="give the folder with gaussian_noise, shot_noise, ...")


def corruption_error(corruption: str, top1: Sequence[float]) -> float:
    """CE in per cent, from the top-1 at each severity in per cent."""
    return float(100 - np.mean(top1)) / ALEXNET_ERRORS[corruption]


def print_errors(model: str, top1: Mapping[str, Sequence[float]], is_imagenet: bool) -> None:
    """Top-1 at each severity, its mean, and for a model of ImageNet's 1000 classes CE and mCE."""
    relative = ("CE",) if is_imagenet else ()
    title = f"{model} on ImageNet-C: top-1 in per cent" + (", and CE relative to AlexNet" if is_imagenet else "")
    table = Table("corruption", *map(str, SEVERITIES), "mean", *relative, title=title)
    errors = {name: corruption_error(name, values) for name, values in top1.items()}
    for name, values in top1.items():
        shown = [f"{errors[name]:.1f}"] if is_imagenet else []
        table.add_row(name, *(f"{value:.2f}" for value in values), f"{np.mean(values):.2f}", *shown)
    table.add_section()
    columns = [f"{np.mean(column):.2f}" for column in zip(*top1.values(), strict=True)]
    missing = [name for name in ALEXNET_ERRORS if name not in top1]
    mce = "-" if missing else f"{np.mean(list(errors.values())):.1f}"
    table.add_row("mean", *columns, f"{np.mean(list(top1.values())):.2f}", *([mce] if is_imagenet else []))
    console = Console()
    console.print(table)
    if is_imagenet and not missing:
        console.print(f"mCE {mce} %, relative to AlexNet's errors as published by Hendrycks and Dietterich (2019)")
    elif is_imagenet:
        console.print(f"mCE needs all {len(ALEXNET_ERRORS)} corruptions; missing: {listed(missing, 15)}")
