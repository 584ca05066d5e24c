"""Draw the figures of docs/figures.md: python docs/draw_figures.py RUNS IMAGES, with run folders RUNS/MIXER/seedK.

figures/NAME.jpg or .png   pictures as small as they can be read
figures/NAME.csv           the numbers in them; checkpoints are named by their path below RUNS
figures/networks.csv       top-1 of every network, from the tables of the runs
"""

import contextlib
import csv
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

import tailprop_cli

FOLDER = Path(__file__).parent / "figures"
DIAGRAMS = ("complexity", "diagnostics", "kernels", "receptive_field_reach")
MOST_BYTES = 200_000
MIXERS = ("attention", "heat", "wave", "tailprop", "multiscale")


def main(runs: Path, images: Path) -> int:
    images, target = images.resolve(), FOLDER.resolve()
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as out, contextlib.chdir(runs):
        checkpoints = [str(run) for mixer in MIXERS for run in sorted(Path(mixer).glob("seed*")) if is_complete(run)]
        args = ["figure", "all", "--checkpoint", *checkpoints, "--images", str(images), "--out", out]
        if code := tailprop_cli.main(args):
            return code
        write_networks(checkpoints, target / "networks.csv")
        for path in sorted(Path(out).iterdir()):
            if path.suffix == ".png":
                with Image.open(path) as image:
                    save(image.convert("RGB"), target / path.stem)
            elif path.suffix in (".csv", ".gif"):
                shutil.copyfile(path, target / path.name)
    return 0


def is_complete(run: Path) -> bool:
    return (run / "history.csv").exists() and (run / "model.safetensors").exists()


def write_networks(checkpoints: list[str], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("mixer", "seed", "epochs", "top1"))
        for run in map(Path, checkpoints):
            with (run / "history.csv").open(newline="") as table:
                epochs = [row for row in csv.DictReader(table) if row["top1"]]
            best = max(epochs, key=lambda row: float(row["top1"]))
            writer.writerow((run.parent.name, run.name.removeprefix("seed"), epochs[-1]["epoch"], best["top1"]))


def save(image: Image.Image, path: Path) -> None:
    """A PNG with 256 colours, which are enough for curves and bars; a JPEG below 200 kB for maps and photographs."""
    if path.name in DIAGRAMS:
        image.quantize(256, dither=Image.Dither.NONE).save(path.with_suffix(".png"), optimize=True)
        return
    for quality in range(90, 60, -5):
        image.save(path.with_suffix(".jpg"), quality=quality, subsampling=0, optimize=True)
        if path.with_suffix(".jpg").stat().st_size < MOST_BYTES:
            return


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
