"""Draw the figures of docs/figures.md: python docs/draw_figures.py RUNS IMAGES, with run folders RUNS/MIXER/seedK."""

import sys
import tempfile
from pathlib import Path

from PIL import Image

import tailprop_cli

FOLDER = Path(__file__).parent / "figures"
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
            with Image.open(path) as image:  # 256 colours are enough for a page
                image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(FOLDER / path.name, optimize=True)
        (FOLDER / "kernels.gif").write_bytes(Path(out, "kernels.gif").read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
