"""Generated scenes in the formats that `tailprop convert` reads."""

import json
import shutil
from pathlib import Path
from typing import Any

from tailprop.data.shapes.render import SceneConfig
from tailprop.data.shapes.write import write_coco

SIDE = 64
SPLITS = {"train": "train2017", "val": "val2017"}


def write_scenes(root: Path) -> dict[str, dict[str, Any]]:
    """Scenes as COCO json, and the content of their files."""
    write_coco(root, SceneConfig(size_px=SIDE), 6, 3)
    return {split: json.loads((root / f"annotations/instances_{name}.json").read_text()) for split, name in SPLITS.items()}


def write_yolo(root: Path, polygons: bool = False) -> dict[str, dict[str, Any]]:
    """images/, labels/ and data.yaml; with `polygons` every box is written as the polygon of its corners."""
    contents = write_scenes(root / "scenes")
    for split, content in contents.items():
        shutil.copytree(root / "scenes" / SPLITS[split], root / "images" / split)
        (root / "labels" / split).mkdir(parents=True)
        for image in content["images"]:
            boxes = [(a["category_id"] - 1, *a["bbox"]) for a in content["annotations"] if a["image_id"] == image["id"]]
            lines = [_polygon(*box) if polygons else _box(*box) for box in boxes]
            (root / "labels" / split / image["file_name"]).with_suffix(".txt").write_text("\n".join(lines) + "\n")
    names = ", ".join(category["name"] for category in contents["train"]["categories"])
    (root / "data.yaml").write_text(f"path: .\ntrain: images/train\nval: images/val\nnames: [{names}]\n")
    shutil.rmtree(root / "scenes")
    return contents


def _box(category: int, x: float, y: float, w: float, h: float) -> str:
    return f"{category} {(x + w / 2) / SIDE} {(y + h / 2) / SIDE} {w / SIDE} {h / SIDE}"


def _polygon(category: int, x: float, y: float, w: float, h: float) -> str:
    corners = (x, y, x + w, y, x + w, y + h, x, y + h)
    return " ".join([str(category), *(str(value / SIDE) for value in corners)])


def write_voc(root: Path) -> dict[str, dict[str, Any]]:
    """Annotations/, JPEGImages/ and ImageSets/Main."""
    contents = write_scenes(root / "scenes")
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for split, content in contents.items():
        names = {category["id"]: category["name"] for category in content["categories"]}
        for image in content["images"]:
            stem = f"{split}_{Path(image['file_name']).stem}"
            shutil.copy(root / "scenes" / SPLITS[split] / image["file_name"], root / "JPEGImages" / f"{stem}.jpg")
            objects = [_object(names, a) for a in content["annotations"] if a["image_id"] == image["id"]]
            size = f"<size>\n<width>{SIDE}</width>\n<height>{SIDE}</height>\n</size>"
            text = f"<annotation>\n<filename>{stem}.jpg</filename>\n{size}\n{''.join(objects)}</annotation>\n"
            (root / "Annotations" / f"{stem}.xml").write_text(text)
            with (root / "ImageSets" / "Main" / f"{split}.txt").open("a") as file:
                file.write(f"{stem}\n")
    shutil.rmtree(root / "scenes")
    return contents


def _object(names: dict[int, str], annotation: dict[str, Any]) -> str:
    x, y, w, h = annotation["bbox"]
    box = f"<xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + w}</xmax><ymax>{y + h}</ymax>"
    flags = f"<difficult>{annotation['iscrowd']}</difficult>"
    return f"<object>\n<name>{names[annotation['category_id']]}</name>\n{flags}\n<bndbox>{box}</bndbox>\n</object>\n"
