"""`tailprop demo`: train a classifier, look inside it, and restore a photograph, in a minute or two on a laptop.

All data comes with the packages: scikit-learn's handwritten digits and photographs of scikit-image. The training is that of
`tailprop train digits`; the denoiser is the shipped one.
"""

import dataclasses
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tailprop.engine.launch import train
from tailprop.engine.recipes import find_recipe, read_recipe
from tailprop.engine.run_settings import read_config
from tailprop.engine.settings import build
from tailprop.runtime.distributed import init_distributed
from tailprop.studies.demo_figures import draw_field, draw_inside, draw_operator
from tailprop.studies.demo_photo import draw_restored_photo
from tailprop.tasks import find_spec, load
from tailprop.tasks.classify.config import ClassifyConfig
from tailprop.tasks.common.look import save_figure
from tailprop.utils.terminal import Console
from tailprop.utils.validation import check_output_folder


@dataclass(frozen=True)
class Demo:
    """Train a small TailProp on scikit-learn's digits, draw what it does inside, and restore a noisy photograph."""

    out: Path = Path("runs/demo")
    """Run folder; an earlier run of the demo is replaced."""
    epochs: int = 12
    """Epochs."""
    batch_size: int = 64
    """Images per step."""
    model: str = "tailprop_pico"
    """Backbone."""
    seed: int = 0
    """Seed of weights, shuffling and augmentation."""


def run(demo: Demo) -> None:
    check_output_folder("--out", demo.out)
    config = _config(demo)
    config.check()
    if (demo.out / "config.yaml").exists() and read_config(demo.out)["data"].get("source") != "digits":
        raise ValueError(f"{demo.out} holds a run that is not from the demo; choose another --out")
    console = Console()
    console.print(f"training {demo.model} on 1198 handwritten digits of 32 px; 599 are held out")
    trainer, _ = train(find_spec(config.task), config, init_distributed(), summary=False)
    photo, decibels = draw_restored_photo()
    save_figure(photo, demo.out / "photo.png")
    save_figure(draw_operator(), demo.out / "operator.png")
    save_figure(draw_inside(demo.out, load(demo.out)), demo.out / "inside.png")
    save_figure(draw_field(demo.out), demo.out / "field.png")
    best = trainer.loop.best
    console.print(
        f"top-1 {best['top1']:.1f} % on the held-out digits after epoch {best['epoch']:.0f}, the best of "
        f"{demo.epochs}; {trainer.loop.seconds:.0f} s of training.",
        soft_wrap=True,
    )
    console.print(f"The shipped model denoise restored a photograph with noise to {decibels:.1f} dB.", soft_wrap=True)
    for name, description in _OUTPUTS.items():
        console.print(f"  {demo.out / name}: {description}", soft_wrap=True)
    console.print("Next:")
    for command, purpose in _NEXT.items():
        console.print(f"  {command.format(tailprop=_program(), out=demo.out)}  # {purpose}", soft_wrap=True, highlight=False)


def _program() -> str:
    """How to call this program: by its name if it is on the PATH, else by its path."""
    own = Path(sys.argv[0])
    return "tailprop" if own.name != "tailprop" or shutil.which("tailprop") else os.path.relpath(own)


_OUTPUTS = {
    "learning.png": "learning curve",
    "confusion.png": "confusion matrix",
    "inside.png": "digits with answers, and lambda in every layer for each digit",
    "field.png": "how far a position of the network sees, untrained, trained and without the operator",
    "operator.png": "the operator on a photograph, from Gaussian to Cauchy",
    "photo.png": "a noisy photograph, restored by the shipped denoiser",
    "model.safetensors": "weights for timm and `tailprop predict`",
    "manifest.json": "settings, versions, hardware and data of the run",
}
_NEXT = {
    "{tailprop} app": "see the operator work, in a page of your browser",
    "{tailprop} predict denoise PHOTO": "restore a photograph of your own",
    "{tailprop} eval {out}": "evaluate it again",
    "{tailprop} train finetune_folder --data.root IMAGES": "train on your own images, one folder for each class",
    "{tailprop} models": "list the backbones",
    "{tailprop} bench": "measure their speed on this machine",
}


def _config(demo: Demo) -> ClassifyConfig:
    config = build(ClassifyConfig, read_recipe(find_recipe("digits")))
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, name=demo.model),
        optim=dataclasses.replace(config.optim, epochs=demo.epochs, batch_size=demo.batch_size),
        run=dataclasses.replace(config.run, out=demo.out, overwrite=True, seed=demo.seed),
    )
