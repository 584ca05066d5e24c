"""The photographs of the shipped restorers: which were trained on, and which were held out.

`split.json` lists them by name: BSD photographs in colour (of BSDS500's training and test images, none of which is in CBSD68),
gray crops of the same 400 photographs (the 400 images of 180 px that DnCNN was trained on), and photographs that come with
scikit-image. A crop is used only if its photograph is not among the colour ones (normalized cross-correlation below 0.9).

    python -m tailprop.studies.shipped.photographs BSD_COLOUR TRAIN400 OUT

writes the folders `train`, `train_gray`, `validation` and `held_out`.
"""

import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from PIL import Image

from tailprop.data.images import list_images, open_image
from tailprop.utils.files import make_folder, write_atomically
from tailprop.utils.parsing import parse_json, read_bytes
from tailprop.utils.text import say

__all__ = ["SPLIT", "held_out_photographs", "scikit_image_photographs", "write_folders"]

SPLIT: Final[dict[str, Any]] = parse_json(read_bytes(Path(__file__).parent / "split.json"), "split.json")


def held_out_photographs(folder: Path) -> list[Path]:
    """The BSD photographs in colour that no shipped model was trained on."""
    return _named(folder, SPLIT["held_out"])


def scikit_image_photographs(held_out: bool = True) -> list[Path]:
    """Photographs that come with scikit-image: those held out, or those trained on."""
    import skimage.data

    folder = Path(skimage.data.__file__).parent
    return [folder / name for name in SPLIT["scikit_image_held_out" if held_out else "scikit_image"]]


def _named(folder: Path, stems: list[str]) -> list[Path]:
    found = {path.stem: path for path in list_images([str(folder)])}
    if missing := [stem for stem in stems if stem not in found]:
        raise ValueError(f"{folder} has no {missing[0]} and lacks {len(missing)} of {len(stems)} photographs of BSDS500")
    return [found[stem] for stem in stems]


def write_folders(bsd: Path, train400: Path, out: Path) -> dict[str, int]:
    """Sort the photographs into folders for `tailprop train`; returns the number of images in each."""
    others = {*SPLIT["held_out"], *SPLIT["validation"]}
    colour = [path for path in list_images([str(bsd)]) if path.stem not in others]
    crops = _named(train400, [f"test_{number:03}" for number in SPLIT["train400"]])
    folders = {
        "train": [*colour, *scikit_image_photographs(held_out=False)],
        "train_gray": crops,
        "held_out": held_out_photographs(bsd),
    }
    for name, paths in folders.items():
        make_folder(out / name)
        for path in paths:
            shutil.copyfile(path, out / name / path.name)
    make_folder(out / "validation")
    for name, image in _validation(bsd):
        write_atomically(out / "validation" / name, partial(image.save, format="png"))
    return {name: len(paths) for name, paths in folders.items()} | {"validation": len(SPLIT["validation"])}


def _validation(bsd: Path) -> Iterator[tuple[str, Image.Image]]:
    """Every second one in gray, because the networks restore both."""
    for path in _named(bsd, SPLIT["validation"]):
        with open_image(path) as image:
            yield f"{path.stem}.png", image.convert("L" if path.stem in SPLIT["gray_validation"] else "RGB")


if __name__ == "__main__":
    say(write_folders(*map(Path, sys.argv[1:4])))
