"""Draw the figures of docs/figures.md: python docs/draw_figures.py RUNS IMAGES, with run folders RUNS/MIXER/seedK."""

import sys
import tempfile
from pathlib import Path

from PIL import Image

import tailprop_cli

FOLDER = Path(__file__).parent / "figures"
DIAGRAMS = ("complexity", "diagnostics", "kernels")
MOST_BYTES = 200_000
MIXERS = ("attention", "heat", "wave", "tailprop", "multiscale")


def main(runs: Path, images: Path) -> int:
    checkpoints = [
        run for mixer in MIXERS for run in sorted((runs / mixer).glob("seed*")) if (run / "model.safetensors").exists()
    ]
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as out:
        args = ["figure", "all", "--checkpoint", *map(str, checkpoints), "--images", str(images), "--out", out]
        if code := tailprop_cli.main(args):
            return code
        for path in sorted(Path(out).glob("*.png")):
            with Image.open(path) as image:
                save(image.convert("RGB"), path.stem)
        (FOLDER / "kernels.gif").write_bytes(Path(out, "kernels.gif").read_bytes())
    return 0


def save(image: Image.Image, name: str) -> None:
    """A PNG with 256 colours, which are enough for curves and bars; a JPEG below 200 kB for maps and photographs."""
    if name in DIAGRAMS:
        image.quantize(256, dither=Image.Dither.NONE).save(FOLDER / f"{name}.png", optimize=True)
        return
    for quality in range(90, 60, -5):
        image.save(FOLDER / f"{name}.jpg", quality=quality, subsampling=0, optimize=True)
        if (FOLDER / f"{name}.jpg").stat().st_size < MOST_BYTES:
            return


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
