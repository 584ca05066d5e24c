"""What every figure is drawn from: networks, images, and options; and what it returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from tailprop.data.broken import Broken
from tailprop.data.photos import Photos, open_photos
from tailprop.studies.figures import MOST_PX
from tailprop.studies.figures.network import Network

__all__ = ["Inputs", "Picture", "Sample", "Tick"]

Tick = Callable[[float], None]  # called with shares of a figure's work, 1 in sum


@dataclass(frozen=True)
class Sample:
    """An image as a network gets it."""

    name: str
    x: Tensor  # (C, H, W)
    shown: Image.Image


@dataclass(frozen=True)
class Picture:
    """A drawn figure with the numbers in it."""

    name: str  # of its files
    title: str
    note: str  # what it shows, in a few sentences
    figure: Figure
    rows: Sequence[dict[str, Any]]
    frames: Sequence[Image.Image] = field(default=())  # of an animation


@dataclass(frozen=True)
class Inputs:
    """Networks and images of a figure."""

    networks: tuple[Network, ...]
    folder: Path | None
    count: int = 64  # images
    stage: int = 3  # whose scales are used, from 1
    map_px: int = 65  # side of the map of an impulse
    seed: int = 0  # of the choice of images, and of initial weights
    fixed_px: bool = False  # the user chose the image size
    given: Sequence[tuple[str, Image.Image]] = ()  # images with names, in place of a folder

    @cached_property
    def photos(self) -> list[tuple[str, Image.Image]]:
        """The chosen images with their names, decoded; broken files are passed over."""
        if self.given:
            return list(self.given[: self.count])
        if self.folder is None:
            raise ValueError("this figure needs images; give a folder of images or of Parquet shards with --images")
        found = _open(self.folder)
        order = np.random.default_rng(self.seed).permutation(len(found))
        chosen: list[tuple[str, Image.Image]] = []
        for index in order.tolist():
            if len(chosen) == self.count:
                break
            if not isinstance(image := found.read(index), Broken):
                chosen.append((found.name(index), _shrunk(image)))
        if not chosen:
            raise ValueError(f"none of the {len(found)} images in {self.folder} can be read")
        return chosen

    def samples(self, network: Network, most: int | None = None) -> list[Sample]:
        """The images, or the first few, as this network gets them."""
        prepared = ((name, *network.prepare(image, number)) for number, (name, image) in enumerate(self.photos[:most]))
        return [Sample(name, x, shown) for name, x, shown in prepared]

    @cached_property
    def groups(self) -> dict[str, list[Network]]:
        """Runs of one network from several seeds are a group; its name is that of the mixer, or tells it from the others."""
        groups: list[list[Network]] = []
        for network in self.networks:
            if same := [group for group in groups if network.is_seed_of(group[0])]:
                same[0].append(network)
            else:
                groups.append([network])
        titles = [group[0].title for group in groups]
        repeated = {title for title in titles if titles.count(title) > 1}
        return {
            f"{title} ({number})" if title in repeated else title: group
            for number, (title, group) in enumerate(zip(titles, groups, strict=True), start=1)
        }

    def with_operators(self, figure: str) -> dict[str, list[Network]]:
        """The groups that have tail propagation; raises if there are none."""
        found = {name: group for name, group in self.groups.items() if group[0].has_operators}
        if not found:
            self.networks[0].require_operators(figure)
        return found

    def suffixes(self, figure: str) -> list[str]:
        """What distinguishes the files of the groups that have tail propagation; nothing for a single one."""
        groups = list(self.with_operators(figure).values())
        mixers = [group[0].mixer for group in groups]
        if len(groups) == 1:
            return [""]
        return [f"_{m}" if mixers.count(m) == 1 else f"_{m}_{n}" for n, m in enumerate(mixers, start=1)]

    def titled(self, title: str, figure: str) -> list[str]:
        """The title of a figure for each group that has tail propagation, with the group's name if there are several."""
        names = list(self.with_operators(figure))
        return [title] if len(names) == 1 else [f"{title}: {name}" for name in names]


def _shrunk(image: Image.Image) -> Image.Image:
    """An image whose shorter side is below 2 MOST_PX, so that a folder of photographs fits into memory."""
    factor = min(image.size) // MOST_PX
    return image.reduce(factor) if factor > 1 else image


def _open(folder: Path) -> Photos:
    if not folder.exists():
        raise ValueError(f"no folder {folder}; give a folder of images or of Parquet shards with --images")
    try:
        return open_photos(folder, "validation")
    except ValueError:
        if not any(folder.rglob("train-*.parquet")):
            raise
        return open_photos(folder, "train")
