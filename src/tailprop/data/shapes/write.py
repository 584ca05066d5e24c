"""Write generated scenes in the formats of real datasets, so that tests and demos use the real data loaders.

coco     train2017/, val2017/ and annotations/instances_{train,val}2017.json, masks as RLE (exact, with holes)
ade20k   images/{training,validation}/*.jpg, annotations/{training,validation}/*.png and objectInfo150.txt
parquet  train-*.parquet and validation-*.parquet, labelled with the shape that has the most visible pixels
"""

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from PIL import Image
from rich.progress import track

from tailprop.data.formats.coco import encode_mask
from tailprop.data.shapes.render import SHAPES, Scene, SceneConfig, make_scene
from tailprop.utils.files import explain_write_errors, make_folder, write_json, write_text
from tailprop.utils.parsing import parse_json, read_text
from tailprop.utils.terminal import Console
from tailprop.utils.text import say

__all__ = [
    "FORMATS",
    "ensure_ade20k",
    "ensure_coco",
    "write_ade20k",
    "write_coco",
    "write_parquet",
    "write_scenes",
]

FORMATS: Final = ("coco", "ade20k", "parquet")
SHARD: Final = 1000  # images in a parquet shard
QUALITY: Final = 92  # of the JPEGs
Style = Literal["coco", "ade20k", "parquet"]
Writer = Callable[[Path, SceneConfig, int, int], None]


def write_scenes(out: Path, style: Style, config: SceneConfig, train: int, val: int) -> None:
    """Write `train` scenes and the `val` scenes after them, and a scenes.json with their settings.

    The folder must be new, empty or hold the same scenes, because the images and annotations of a real dataset have the same
    names. scenes.json is written first, so that an interrupted call can be repeated.
    """
    config.check()
    if style == "parquet" and config.objects[0] < 1:
        raise ValueError("a scene without shapes has no label; parquet needs at least one shape in every scene (objects)")
    note, wanted = out / "scenes.json", _describe(style, config, train, val)
    _check_same_scenes(out, _read_note(note), wanted)
    write_json(note, wanted | {"begun": True}, indent=None)
    _WRITERS[style](out, config, train, val)
    write_json(note, wanted, indent=None)


def _check_same_scenes(out: Path, known: dict[str, Any] | None, wanted: dict[str, Any]) -> None:
    if known is None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(
            f"{out} does not hold generated scenes; give a new folder, or use another --data.source to train on its files"
        )
    if known is not None and {**known, "begun": True} != {**wanted, "begun": True}:
        raise ValueError(f"{out} holds scenes generated with other settings; remove it or give another folder")


def _read_note(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        return dict(parse_json(read_text(path), path))
    except (ValueError, TypeError):
        raise ValueError(f"{path} is corrupt; remove the folder to generate the scenes again") from None


def _describe(style: Style, config: SceneConfig, train: int, val: int) -> dict[str, Any]:
    described = dict(asdict(config), train=train, val=val, **({} if style == "coco" else {"format": style}))
    return json.loads(json.dumps(described))  # as json reads it back


def _scenes(config: SceneConfig, first: int, count: int) -> Iterator[tuple[int, Scene]]:
    indices = track(range(first, first + count), "scenes", transient=True, disable=not Console().is_terminal)
    return ((index, make_scene(config, index)) for index in indices)


def write_coco(out: Path, config: SceneConfig, train: int, val: int) -> None:
    for split, first, count in (("train2017", 0, train), ("val2017", train, val)):
        make_folder(out / split)
        content = _coco_split(out / split, config, first, count)
        write_json(out / "annotations" / f"instances_{split}.json", content, indent=None)


def _save(path: Path, pixels: np.ndarray) -> None:
    """Not atomically, which would wait for the disk at every image: scenes.json says whether they are complete."""
    with explain_write_errors(path):
        Image.fromarray(pixels).save(path, quality=QUALITY)


def ensure_coco(out: Path, config: SceneConfig, train: int, val: int) -> None:
    """Write the scenes unless they exist; raise if the folder holds something else."""
    _ensure(out, "coco", config, train, val)


def ensure_ade20k(out: Path, config: SceneConfig, train: int, val: int) -> None:
    """The same with label maps."""
    _ensure(out, "ade20k", config, train, val)


def _ensure(out: Path, style: Style, config: SceneConfig, train: int, val: int) -> None:
    if _read_note(out / "scenes.json") == _describe(style, config, train, val):
        return
    _check_same_scenes(out, _read_note(out / "scenes.json"), _describe(style, config, train, val))
    say(f"generating {train + val} scenes in {out}", flush=True)
    write_scenes(out, style, config, train, val)


def _coco_split(folder: Path, config: SceneConfig, first: int, count: int) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index, scene in _scenes(config, first, count):
        name, image_id = f"{index + 1:012d}.jpg", index + 1
        _save(folder / name, scene.image)
        images.append(dict(id=image_id, file_name=name, width=config.size_px, height=config.size_px))
        for instance in scene.instances:
            y, x = instance.mask.nonzero()
            box = [int(x.min()), int(y.min()), int(np.ptp(x)) + 1, int(np.ptp(y)) + 1]
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=image_id,
                    category_id=instance.label + 1,
                    segmentation=encode_mask(instance.mask),
                    area=int(instance.mask.sum()),
                    bbox=box,
                    iscrowd=int(instance.is_crowd),
                )
            )
    categories = [dict(id=i, name=name, supercategory="shape") for i, name in enumerate(SHAPES, start=1)]
    return dict(
        info=dict(description=f"generated scenes {config}"), images=images, annotations=annotations, categories=categories
    )


def write_ade20k(out: Path, config: SceneConfig, train: int, val: int) -> None:
    pixels = np.zeros(len(SHAPES) + 2, dtype=np.int64)
    seen = {split: np.zeros_like(pixels) for split in ("training", "validation")}
    for split, short, first, count in (("training", "train", 0, train), ("validation", "val", train, val)):
        for kind in ("images", "annotations"):
            make_folder(out / kind / split)
        for number, (_, scene) in enumerate(_scenes(config, first, count), start=1):
            name, labels = f"ADE_{short}_{number:08d}", scene.labels()
            _save(out / "images" / split / f"{name}.jpg", scene.image)
            _save(out / "annotations" / split / f"{name}.png", labels)
            counts = np.bincount(labels.ravel(), minlength=len(pixels))
            pixels += counts
            seen[split] += counts > 0
    rows = ["Idx\tRatio\tTrain\tVal\tStuff\tName"]
    for index, name in enumerate(("ground", *SHAPES), start=1):
        share = pixels[index] / max(1, pixels.sum())
        rows.append(f"{index}\t{share:.4f}\t{seen['training'][index]}\t{seen['validation'][index]}\t{int(index == 1)}\t{name}")
    write_text(out / "objectInfo150.txt", "\n".join(rows) + "\n")


def write_parquet(out: Path, config: SceneConfig, train: int, val: int) -> None:
    import datasets

    make_folder(out)
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=list(SHAPES)))
    for split, first, count in (("train", 0, train), ("validation", train, val)):
        shards = max(1, -(-count // SHARD))
        for shard in range(shards):
            begin, end = first + count * shard // shards, first + count * (shard + 1) // shards
            scenes = [scene for _, scene in _scenes(config, begin, end - begin)]
            rows = [dict(image=dict(bytes=_jpeg(scene), path=None), label=_main_label(scene)) for scene in scenes]
            data = datasets.Dataset.from_list(rows, features=features)
            path = out / f"{split}-{shard:05d}-of-{shards:05d}.parquet"
            with explain_write_errors(path):
                data.to_parquet(path)


def _jpeg(scene: Scene) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(scene.image).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def _main_label(scene: Scene) -> int:
    if not scene.instances:
        raise ValueError("a scene without shapes has no label; parquet needs at least one object in every scene")
    return max(scene.instances, key=lambda i: (not i.is_crowd, i.mask.sum())).label


_WRITERS: Final[dict[str, Writer]] = {"coco": write_coco, "ade20k": write_ade20k, "parquet": write_parquet}
