"""`tailprop predict` for a detector: detections drawn on the images and as COCO JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Column

from tailprop.data.broken import Broken
from tailprop.data.formats.coco import area_of
from tailprop.data.images import check_no_overwrite, list_images, read_image, save_image, suppress_pillow_warnings, unique_stems
from tailprop.runtime.distributed import process_group
from tailprop.tasks.common.progress import SkippedImages, progress_bar
from tailprop.tasks.detect.draw import draw_objects, objects_of
from tailprop.tasks.detect.load import ObjectDetector, load_detector
from tailprop.tasks.detect.metrics import to_results
from tailprop.tasks.detect.options import DetectPredict
from tailprop.utils.files import make_folder, write_json
from tailprop.utils.terminal import Console, Table

__all__ = ["run"]


def run(options: DetectPredict) -> None:
    options.check()
    with process_group(options.device, options.threads) as world:
        if world.is_main:  # under torchrun only rank 0 predicts
            paths = list_images(options.images)
            detector = load_detector(options.checkpoint, options.short_px)
            detector.model.to(world.device)
            make_folder(options.out)
            drawn = [options.out / f"{stem}.jpg" for stem in unique_stems(paths)]
            check_no_overwrite(paths, [*drawn, options.out / "detections.json"], options.overwrite)
            with suppress_pillow_warnings():
                content = _detect_all(options, detector, paths)
            write_json(options.out / "detections.json", content, indent=None)
            _print(options, content, detector.categories)


def _detect_all(options: DetectPredict, detector: ObjectDetector, paths: Sequence[Path]) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    stems, console = unique_stems(paths), Console(stderr=True)
    skipped = SkippedImages(console, options.on_broken, len(paths))
    with progress_bar("detecting", len(paths), console) as advance:
        for number, path in enumerate(paths, start=1):
            advance(1)
            image = read_image(path, "RGB")
            if isinstance(image, Broken):
                skipped.add(image)
                continue
            results = to_results(number, detector.find(image, options.precision, options.score), detector.category_ids)
            found = [entry for entry in results if entry["score"] >= options.score]
            drawn = draw_objects(image, objects_of(found, detector.categories, options.score))
            save_image(options.out / f"{stems[number - 1]}.jpg", drawn)
            images.append(dict(id=number, file_name=str(path), width=image.width, height=image.height))
            areas = [area_of(entry, image.width, image.height) for entry in found]
            numbered = enumerate(zip(found, areas, strict=True), start=len(annotations) + 1)
            annotations += [dict(entry, id=k, iscrowd=0, area=area) for k, (entry, area) in numbered]
    categories = [dict(id=i, name=name) for i, name in detector.categories.items()]
    return dict(images=images, annotations=annotations, categories=categories)


def _print(options: DetectPredict, content: dict[str, Any], names: dict[int, str]) -> None:
    table = Table(Column("image", overflow="fold"), "objects", "found")
    for image in content["images"]:
        found = [names[a["category_id"]] for a in content["annotations"] if a["image_id"] == image["id"]]
        counts = ", ".join(f"{found.count(name)} {name}" for name in sorted(set(found)))
        table.add_row(image["file_name"], str(len(found)), counts)
    console = Console()
    console.print(table)
    console.print(f"drawn images and detections.json in {options.out}", soft_wrap=True)
