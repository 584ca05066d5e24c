"""`tailprop predict` for a detector: what it finds, drawn on the pictures and as COCO json."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table
from rich.text import Text

from tailprop.data.broken import Broken
from tailprop.data.formats.coco import area_of
from tailprop.data.images import list_pictures, quiet_pillow, read_picture, refuse_what_is_there, unique_stems
from tailprop.data.loader import to_device
from tailprop.runtime.distributed import together
from tailprop.runtime.precision import autocast
from tailprop.tasks.common.predict import Answering, Skipped
from tailprop.tasks.detect.draw import draw_objects, objects_of
from tailprop.tasks.detect.load import LoadedDetector, load_detector
from tailprop.tasks.detect.metrics import to_results
from tailprop.utils.files import write_json
from tailprop.utils.text import printable
from tailprop.utils.validation import check_between

__all__ = ["PredictDetect", "find_objects", "run"]


@dataclass(frozen=True)
class PredictDetect(Answering):
    """Find objects in pictures."""

    out: Path = Path("detections")
    """Folder for the drawn pictures and detections.json (images, annotations with scores, categories, as in COCO)."""
    score: float = 0.5
    """Least score of an object that is drawn and written."""
    short_px: int | None = None
    """Shorter side the pictures are resized to; none = as in the run."""

    def check(self) -> None:
        check_between("score", self.score, 0, 1)
        super().check()


def run(options: PredictDetect) -> None:
    options.check()
    with together(options.device, options.threads) as world:
        if world.is_first:  # under torchrun one process answers, once
            paths = list_pictures(options.pictures)
            detector = load_detector(options.checkpoint, options.short_px)
            detector.model.to(world.device)
            _ask_for(detector, options.score)
            options.out.mkdir(parents=True, exist_ok=True)
            drawn = [options.out / f"{stem}.jpg" for stem in unique_stems(paths)]
            refuse_what_is_there(paths, [*drawn, options.out / "detections.json"], options.overwrite)
            with quiet_pillow(), autocast(world.device, options.precision):
                content = _look_at_all(options, detector, paths, world.device)
            write_json(options.out / "detections.json", content, indent=None)
            _say(options, content, detector.categories)


def _ask_for(detector: LoadedDetector, score: float) -> None:
    """Let the model drop what is not wanted before it makes masks of it, which take memory as large as the picture."""
    detector.model.roi_heads.score_thresh = score - 1e-6  # it wants more than this, we as much


@torch.inference_mode()
def find_objects(detector: LoadedDetector, picture: Image.Image, image_id: int, device: torch.device) -> list[dict[str, Any]]:
    """The objects in an RGB picture, as entries of a results file, best first."""
    image = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    (found,) = detector.model([to_device(image, device).float() / 255])
    return to_results(image_id, found, detector.category_ids)


def _look_at_all(
    options: PredictDetect, detector: LoadedDetector, paths: Sequence[Path], device: torch.device
) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    names = unique_stems(paths)
    quiet = not Console().is_terminal
    skipped = Skipped(Console(stderr=True), options.on_broken, len(paths))
    for number, path in enumerate(track(paths, "looking", transient=True, disable=quiet), start=1):
        picture = read_picture(path, "RGB")
        if isinstance(picture, Broken):
            skipped.add(picture)
            continue
        found = [e for e in find_objects(detector, picture, number, device) if e["score"] >= options.score]
        draw_objects(picture, objects_of(found, detector.categories, options.score)).save(
            options.out / f"{names[number - 1]}.jpg"
        )
        images.append(dict(id=number, file_name=str(path), width=picture.width, height=picture.height))
        areas = [area_of(entry, picture.width, picture.height) for entry in found]
        numbered = enumerate(zip(found, areas, strict=True), start=len(annotations) + 1)
        annotations += [dict(entry, id=k, iscrowd=0, area=area) for k, (entry, area) in numbered]
    categories = [dict(id=i, name=name) for i, name in detector.categories.items()]
    return dict(images=images, annotations=annotations, categories=categories)


def _say(options: PredictDetect, content: dict[str, Any], names: dict[int, str]) -> None:
    table = Table(Column("picture", overflow="fold"), "objects", "found")
    for image in content["images"]:
        found = [names[a["category_id"]] for a in content["annotations"] if a["image_id"] == image["id"]]
        counts = ", ".join(f"{found.count(name)} {name}" for name in sorted(set(found)))
        table.add_row(Text(printable(image["file_name"])), str(len(found)), Text(printable(counts)))
    console = Console()
    console.print(table)
    console.print(f"drawn pictures and detections.json in {options.out}", soft_wrap=True, markup=False)
