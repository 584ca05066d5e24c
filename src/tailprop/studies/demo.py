"""`tailprop demo`: train a classifier and plot the operator in a few minutes on a laptop.

All data comes with the packages: scikit-learn's handwritten digits and a photograph of scikit-image. The training is that of
`tailprop train digits`.
"""

import dataclasses
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure

import tailprop
from tailprop.engine.launch import train
from tailprop.engine.recipes import find_recipe, read_recipe
from tailprop.engine.run_settings import read_config
from tailprop.engine.settings import build
from tailprop.runtime.distributed import init_distributed
from tailprop.tasks import find_spec
from tailprop.tasks.classify.task import ClassifyConfig
from tailprop.tasks.common.figures import save_figure
from tailprop.utils.terminal import Console
from tailprop.utils.validation import check_output_folder


@dataclass(frozen=True)
class Demo:
    """Train a small TailProp on scikit-learn's digits, evaluate it, and plot the operator."""

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
    save_figure(draw_operator(), demo.out / "operator.png")
    best = trainer.loop.best
    console.print(
        f"top-1 {best['top1']:.1f} % on the held-out digits after epoch {best['epoch']:.0f}, the best of "
        f"{demo.epochs}; {trainer.loop.seconds:.0f} s of training.",
        soft_wrap=True,
    )
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
    "operator.png": "the operator on a photograph, from Gaussian to Cauchy",
    "model.safetensors": "weights for timm and `tailprop predict`",
    "manifest.json": "settings, versions, hardware and data of the run",
}
_NEXT = {
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


def draw_operator(scales: tuple[float, float] = (60.0, 8.0)) -> Figure:
    """The operator applied to a photograph and to three bright points, from lambda = 1 (Gaussian) to 0 (Cauchy)."""
    from skimage.data import astronaut

    photo = torch.from_numpy(astronaut()[::2, ::2].copy()).float()[None] / 255  # (1, 256, 256, 3)
    points = torch.zeros(1, 256, 256, 1)
    points[0, [70, 128, 200], [60, 150, 90]] = 1.0
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    axes = figure.subplots(2, 5)
    axes[0, 0].imshow(photo[0].numpy())
    axes[0, 0].set_title("photograph")
    axes[1, 0].imshow(points[0, ..., 0].numpy(), cmap="magma", vmax=0.05)
    axes[1, 0].set_title("three bright points")
    for column, lam in enumerate((1.0, 0.7, 0.3, 0.0), start=1):
        weights = (lam, 1 - lam)
        axes[0, column].imshow(tailprop.tail_propagate(photo, scales, weights)[0].clamp(0, 1).numpy())
        response = tailprop.tail_propagate(points, scales, weights)[0, ..., 0]
        axes[1, column].imshow((response / response.max()).clamp_min(1e-5).log10().numpy(), cmap="magma", vmin=-4, vmax=0)
        name = {1.0: ", Gaussian", 0.0: ", Cauchy"}.get(lam, "")
        axes[0, column].set_title(f"$\\lambda$ = {lam:g}{name}")
        axes[1, column].set_title("response, log scale")
    for ax in axes.flat:
        ax.axis("off")
    return figure
