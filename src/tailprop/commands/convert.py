"""`tailprop convert`: boxes and polygons of other formats as COCO json, which `tailprop train` and many other programs read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import tyro

from tailprop.data.broken import print_broken
from tailprop.data.formats.annotated import Annotations, hold_out, to_coco
from tailprop.data.formats.voc import Difficult, is_voc, read_voc
from tailprop.data.formats.yolo import is_yolo, read_yolo
from tailprop.engine.settings import check_numbers
from tailprop.utils.files import write_json
from tailprop.utils.text import counted, listed, say
from tailprop.utils.validation import check_between, check_output_folder

__all__ = ["Convert", "run"]

_TRAINED: Final = ("train", "trainval", "all")  # the first that exists is trained on
_VALIDATED: Final = ("val", "test")


@dataclass(frozen=True)
class Convert:
    """Convert a dataset to COCO json; its images stay where they are."""

    dataset: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DATASET")]
    """Folder of the dataset, or its data.yaml."""
    format: Literal["auto", "yolo", "voc"] = "auto"
    """yolo: text labels in the layout of Ultralytics; voc: Pascal VOC's xml files; auto = by what is in the folder."""
    out: Path | None = None
    """Folder for the json files, one for each split; none = the folder coco in the dataset."""
    held_out: float = 0.0
    """Share of the images for a validation split, if the dataset has no splits."""
    difficult: Difficult = "ignore"
    """Difficult objects of VOC. ignore: not trained on, and not counted in evaluation (iscrowd); keep: like others; drop."""
    on_broken: Literal["skip", "stop"] = "stop"
    """For an invalid line or a broken image: skip and print it, or stop before anything is written."""
    overwrite: bool = False
    """Replace json files that exist."""

    def check(self) -> None:
        check_numbers(self)
        check_between("held_out", self.held_out, 0, 1)
        if not self.dataset.exists():
            raise ValueError(f"no dataset at {self.dataset}")
        check_output_folder("--out", self.folder)

    @property
    def root(self) -> Path:
        return self.dataset if self.dataset.is_dir() else self.dataset.parent

    @property
    def folder(self) -> Path:
        return self.root / "coco" if self.out is None else self.out


def run(options: Convert) -> None:
    options.check()
    data = _read(options)
    if options.held_out:
        if len(data.splits) > 1:
            raise ValueError(f"{options.dataset} has the splits {listed(list(data.splits))}; leave out --held-out")
        hold_out(data, options.held_out)
    _check_broken(options, data)
    files = {split: options.folder / f"{split}.json" for split in data.splits}
    existing = [path for path in files.values() if path.exists()]
    if existing and not options.overwrite:
        raise ValueError(f"{existing[0]} exists; choose another --out, or give --overwrite to replace it")
    for split, images in data.splits.items():
        content = to_coco(data.names, data.folders[split], images)
        write_json(files[split], content, indent=None)
        verb = "replaced" if files[split] in existing else "wrote"
        say(f"{verb} {files[split]}: {counted(len(images), 'image')}, {_describe(content)}")
    say(f"{counted(len(data.names), 'class')}: {listed(data.names, 5)}")
    say(f"train with: {_train_command(options, data, files)}")


def _read(options: Convert) -> Annotations:
    form = options.format
    if form == "auto":
        form = "voc" if is_voc(options.dataset) else "yolo" if is_yolo(options.dataset) else "auto"
    if form == "yolo" and is_yolo(options.dataset):
        return read_yolo(options.dataset)
    if form == "voc" and is_voc(options.dataset):
        return read_voc(options.dataset, options.difficult)
    needed = {
        "yolo": "a YOLO dataset, which has data.yaml or classes.txt",
        "voc": "a Pascal VOC dataset, which has a folder Annotations",
        "auto": "a dataset to convert: YOLO's has data.yaml or classes.txt, Pascal VOC's a folder Annotations",
    }
    raise ValueError(f"{options.dataset} is not {needed[form]}")


def _check_broken(options: Convert, data: Annotations) -> None:
    if data.broken and options.on_broken == "stop":
        more = f" (and {len(data.broken) - 1} more)" if len(data.broken) > 1 else ""
        raise ValueError(f"{data.broken[0]}{more}; fix it, or skip it (--on-broken skip)")
    print_broken(data.broken)
    if empty := next((split for split, images in data.splits.items() if not images), None):
        raise ValueError(f"no image of {empty} is left; the first problem: {data.broken[0]}")


def _describe(content: dict[str, Any]) -> str:
    objects = content["annotations"]
    outlined = sum("segmentation" in a for a in objects)
    ignored = sum(a["iscrowd"] for a in objects)
    parts = [counted(len(objects), "object")]
    if outlined:
        parts.append(f"{outlined} with a polygon")
    if ignored:
        parts.append(f"{ignored} difficult and ignored")
    return ", ".join(parts)


def _train_command(options: Convert, data: Annotations, files: dict[str, Path]) -> str:
    train = next((split for split in _TRAINED if split in files), next(iter(files)))
    val = next((split for split in _VALIDATED if split in files), train)
    root = options.root

    def below(path: Path) -> Path:
        return path.relative_to(root) if path.is_relative_to(root) else path.absolute()

    names = dict(train_images=data.folders[train], train_json=files[train], val_images=data.folders[val], val_json=files[val])
    given = " ".join(f"--data.{name.replace('_', '-')} {below(path)}" for name, path in names.items())
    return f"tailprop train finetune_coco --data.root {root} {given}"
