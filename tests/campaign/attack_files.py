"""Attacks on data files: images of every format, COCO annotations, label maps, parquet shards."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from tests.campaign.mutate import mutate_bytes, mutate_value
from tests.campaign.outcomes import REFUSED, RIGHT, Verdict, judge_exit, wrong
from tests.campaign.processes import attempt, run
from tests.campaign.subjects import Subject
from tests.helpers.folders import make_snapshot

__all__ = ["mutate_coco", "mutate_images", "mutate_labels", "mutate_parquet"]

FILES = 40  # mutated files of a round
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\n"
KINDS = ("png", "jpg", "gif", "bmp", "tif", "webp", "ppm", "tga", "jp2", "qoi", "avif")


def _image_bytes(kind: str, rng: Random, home: Path) -> bytes:
    """An image of a format in a random mode."""
    pixels = np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (40, 44, 4), dtype=np.uint8)
    modes = {"gif": ["P", "L"], "jpg": ["RGB", "L", "CMYK"], "png": ["RGB", "RGBA", "L", "LA", "P", "1", "I;16"]}
    mode = rng.choice(modes.get(kind, ["RGB"]))
    image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(pixels).convert(mode)
    path = home / f"original.{kind}"
    image.save(path)
    return path.read_bytes()


def mutate_images(subject: Subject, rng: Random, work: Path) -> Iterator[Verdict]:
    """A folder of mutated images, some of them no files: each is answered, or skipped with its name in one line."""
    folder = work / "images"
    folder.mkdir()
    shutil.copy(subject.image, folder / f"whole{subject.image.suffix}")
    for number in range(FILES):
        kind = rng.choice(KINDS)
        (folder / f"{number}.{kind}").write_bytes(mutate_bytes(_image_bytes(kind, rng, work), rng))
    (folder / "eps.png").write_bytes(EPS)
    os.mkfifo(folder / "fifo.png")
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "a\x1b[2Jb.png").write_bytes(b"no image")
    done = run(subject.predict(subject.whole, folder, work / "out"), subject.home)
    verdict = judge_exit(done.code, done.err, True, f"{subject.task}, mutated images")
    if verdict is not RIGHT:
        yield verdict
        return
    skipped = [line for line in done.err.splitlines() if line.startswith("skipped ")]
    if not any("eps.png" in line for line in skipped) or not any("fifo.png" in line for line in skipped):
        yield wrong(f"{subject.task}: a PostScript file or a pipe was read as an image: {done.err[-300:]}")
    for _ in skipped:
        yield REFUSED
    for _ in range(FILES + 5 - len(skipped)):
        yield RIGHT


def mutate_coco(subject: Subject, rng: Random, work: Path) -> Iterator[Verdict]:
    """Mutated annotations, read as in training: every object of every image becomes a target."""
    source = subject.home / "data" / "annotations" / "instances_train2017.json"
    content, text = json.loads(source.read_text()), source.read_bytes()
    tries: list[tuple[str, Callable[[], object]]] = []
    paths = [work / f"{number}.json" for number in range(FILES)]
    for path in paths:
        path.write_bytes(_mutated_json(content, text, rng))
        tries.append((path.read_bytes()[:200].decode(errors="replace"), lambda path=path: _read_all_targets(path, subject)))
    yield from attempt(tries, [path.name for path in paths])
    shutil.copytree(subject.home / "data", work / "data")
    (work / "data" / "annotations" / "instances_val2017.json").write_bytes(_mutated_json(content, text, rng))
    args = [*subject.evaluate(subject.whole, work), "--data.root", str(work / "data"), "--data.val-images", "train2017"]
    done = run(args, subject.home)
    yield judge_exit(done.code, done.err, True, "eval of mutated annotations")


def _mutated_json(content: Any, text: bytes, rng: Random) -> bytes:
    return mutate_bytes(text, rng) if rng.random() < 0.4 else json.dumps(mutate_value(content, rng)).encode()


def _read_all_targets(path: Path, subject: Subject) -> None:
    from tailprop.data.formats.coco import read_coco
    from tailprop.data.samplers import SampleKey
    from tailprop.tasks.detect.config import DetectAugmentConfig
    from tailprop.tasks.detect.data import Augment, DetectionDataset

    found = read_coco(path, subject.home / "data" / "train2017")
    outside = [image.path for image in found.images if not image.path.resolve().is_relative_to(subject.home.resolve())]
    assert not outside, f"reads {outside}"
    augment = Augment(DetectAugmentConfig(short_px=(48, 64)), 64)
    dataset = DetectionDataset(found.images, found.category_ids, augment)
    for index in range(len(dataset)):
        dataset[SampleKey(index, 7, 0.0)]
    found.ground_truth()
    found.fingerprint()


def mutate_labels(subject: Subject, rng: Random, work: Path) -> Iterator[Verdict]:
    """Mutated label maps and lists of classes, read as in training."""
    from tailprop.data.broken import Broken
    from tailprop.data.formats.label_maps import Labelled, read_classes, read_pair

    maps = sorted((subject.home / "data" / "annotations" / "training").glob("*.png"))
    images = sorted((subject.home / "data" / "images" / "training").glob("*.jpg"))
    classes = (subject.home / "data" / "objectInfo150.txt").read_bytes()
    tries: list[tuple[str, Callable[[], object]]] = []
    names = []

    def read(pair: Labelled) -> None:
        found = read_pair(pair, 4, 1)
        if isinstance(found, Broken):
            raise ValueError(str(found))

    for number in range(FILES):
        place = rng.randrange(len(maps))
        path = work / f"{number}.png"
        path.write_bytes(mutate_bytes(maps[place].read_bytes(), rng))
        pair = Labelled(images[place], path)
        tries.append((path.name, lambda pair=pair: read(pair)))
        names.append(path.name)
    for number in range(FILES // 8):
        path = work / f"{number}.txt"
        path.write_bytes(mutate_bytes(classes, rng))
        tries.append((path.name, lambda path=path: read_classes(path)))
        names.append(path.name)
    yield from attempt(tries, names)


def mutate_parquet(subject: Subject, rng: Random, work: Path) -> Iterator[Verdict]:  # noqa: ARG001 - the data are its own
    """Mutated shards, most of them in the footer, read as in training; some are truncated while they are open."""
    make_snapshot(work / "whole", {"train": [0, 1, 2, 1] * 5}, shards=1, classes=3)
    (shard,) = (work / "whole").iterdir()
    data = shard.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    tries: list[tuple[str, Callable[[], object]]] = []
    for number in range(FILES // 2):
        folder = work / str(number)
        folder.mkdir()
        (folder / shard.name).write_bytes(mutate_bytes(data, rng, tail=footer))
        cut = rng.randrange(len(data)) if rng.random() < 0.2 else None
        tries.append((f"{shard.name} {number}", lambda folder=folder, cut=cut: _read_snapshot(folder, shard.name, cut)))
    yield from attempt(tries, [shard.name] * len(tries))


def _read_snapshot(folder: Path, name: str, cut: int | None) -> None:
    from tailprop.data.formats.parquet import Parquet

    source = Parquet(folder, "train", folder / "cache")
    if cut is not None:
        os.truncate(folder / name, min(cut, (folder / name).stat().st_size))
    for row in range(len(source.labels)):
        try:
            with source.read(row) as image:
                image.load()
        except (OSError, ValueError, SyntaxError):  # the loader reports each with the name of its row
            str(source.name(row))
