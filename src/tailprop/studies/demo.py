"""`tailprop demo`: from nothing to a trained classifier and two pictures, in a few minutes on a laptop.

Everything it needs comes with the packages: scikit-learn's handwritten digits and a photograph of scikit-image.
"""

import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import timm
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from rich.console import Console
from safetensors.torch import save_model
from torch import Tensor, nn

import tailprop
from tailprop.checks import check_at_least, check_model
from tailprop.data.memory import ImageSet, load_digits
from tailprop.train import History, Schedule, build_optimizer, fit


@dataclass(frozen=True)
class Demo:
    """Train a small TailProp on embedded digits, evaluate it, and draw the operator at work."""

    out: Path = Path("runs/demo")
    """Folder for the weights, the table and the pictures."""
    model: str = "tailprop_pico"
    """Backbone."""
    epochs: int = 12
    """Passes over the training digits."""
    batch: int = 64
    """Images in a step."""
    seed: int = 0
    """Seed of weights and shuffling."""

    def check(self) -> None:
        check_at_least("epochs", self.epochs, 1)
        check_at_least("batch", self.batch, 1)
        check_model(self.model)


def run(demo: Demo) -> None:
    demo.check()
    mpl.use("agg")
    demo.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    train, test = load_digits()
    if demo.batch > len(train):
        raise ValueError(f"a batch of {demo.batch} is more than the {len(train)} digits there are")
    console.print(f"{len(train)} digits to learn from, {len(test)} held out; {demo.model} at {train.images.shape[-1]} px")
    began = time.perf_counter()
    model, history = _train(demo, train, test)
    seconds = time.perf_counter() - began

    predictions = _predict(model, test)
    _write_history(history, demo.out / "history.csv")
    save_model(model, str(demo.out / "model.safetensors"))
    _draw_learning(history, test, predictions).savefig(demo.out / "learning.png", dpi=120)
    draw_operator().savefig(demo.out / "operator.png", dpi=120)

    accuracy = 100 * (predictions == test.labels).float().mean().item()
    console.print(f"[bold]{accuracy:.1f} %[/] of the held-out digits are right after {seconds:.0f} s of training. Made:")
    for name, what in _MADE.items():
        console.print(f"  {demo.out / name}: {what}")
    console.print("Next: `tailprop models` lists the backbones, `tailprop bench` measures them on this machine.")


_MADE = {
    "learning.png": "learning curve and confusion matrix",
    "operator.png": "the operator on a photograph, from Gaussian to Cauchy",
    "history.csv": "loss and accuracy by epoch",
    "model.safetensors": "the weights",
}


def _train(demo: Demo, train: ImageSet, test: ImageSet) -> tuple[nn.Module, History]:
    torch.manual_seed(demo.seed)
    model = timm.create_model(demo.model, in_chans=1, num_classes=len(train.classes))
    steps = demo.epochs * (len(train) // demo.batch)
    generator = torch.Generator().manual_seed(demo.seed)

    def batches(_epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        return train.batches(demo.batch, generator, shift_px=3)

    history = fit(
        model,
        build_optimizer(model, weight_decay=0.05),
        Schedule(lr=1e-3, steps=steps, warmup_steps=steps // 10),
        batches,
        lambda net, batch: F.cross_entropy(net(batch[0]), batch[1], label_smoothing=0.1),
        lambda net: dict(accuracy=100 * (_predict(net, test) == test.labels).float().mean().item()),
        demo.epochs,
    )
    return model, history


@torch.inference_mode()
def _predict(model: nn.Module, data: ImageSet) -> Tensor:
    model.eval()
    return torch.cat([model(images).argmax(1) for images, _ in data.batches(256)])


def _write_history(history: History, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(history.epochs[0]))
        writer.writeheader()
        writer.writerows(history.epochs)


def _draw_learning(history: History, test: ImageSet, predictions: Tensor) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    curve, confusion = figure.subplots(1, 2)
    epochs = history.column("epoch")
    curve.plot(epochs, history.column("accuracy"), color="tab:blue", label="held-out accuracy, %")
    curve.set(xlabel="epoch", ylabel="accuracy, %", ylim=(0, 100), title="Learning")
    right = curve.twinx()
    right.plot(epochs, history.column("loss"), color="tab:orange", label="training loss")
    right.set(ylabel="loss", ylim=(0, None))
    lines = [*curve.lines, *right.lines]
    curve.legend(lines, [str(line.get_label()) for line in lines], loc="center right")

    size = len(test.classes)
    counts = torch.bincount(test.labels * size + predictions, minlength=size**2).reshape(size, size)
    confusion.imshow(counts.sqrt().numpy(), cmap="Blues")  # the root, so that single mistakes show
    for row in range(size):
        for column in range(size):
            if (count := int(counts[row, column])) > 0:
                colour = "white" if row == column else "black"
                confusion.text(column, row, str(count), ha="center", va="center", fontsize=7, color=colour)
    confusion.set(xlabel="predicted", ylabel="true", title="Held-out digits", xticks=range(size), yticks=range(size))
    return figure


def draw_operator(scales: tuple[float, float] = (60.0, 8.0)) -> Figure:
    """A photograph and three points of light under the operator, from lambda = 1 (Gaussian) to 0 (Cauchy)."""
    from skimage.data import astronaut

    photo = torch.from_numpy(astronaut()[::2, ::2].copy()).float()[None] / 255  # (1, 256, 256, 3)
    lights = torch.zeros(1, 256, 256, 1)
    lights[0, [70, 128, 200], [60, 150, 90]] = 1.0
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    axes = figure.subplots(2, 5)
    axes[0, 0].imshow(photo[0].numpy())
    axes[0, 0].set_title("photograph")
    axes[1, 0].imshow(lights[0, ..., 0].numpy(), cmap="magma", vmax=0.05)
    axes[1, 0].set_title("three points of light")
    for column, lam in enumerate((1.0, 0.7, 0.3, 0.0), start=1):
        weights = (lam, 1 - lam)
        axes[0, column].imshow(tailprop.tail_propagate(photo, scales, weights)[0].clamp(0, 1).numpy())
        glow = tailprop.tail_propagate(lights, scales, weights)[0, ..., 0]
        axes[1, column].imshow((glow / glow.max()).clamp_min(1e-5).log10().numpy(), cmap="magma", vmin=-4, vmax=0)
        name = {1.0: ", Gaussian", 0.0: ", Cauchy"}.get(lam, "")
        axes[0, column].set_title(f"$\\lambda$ = {lam:g}{name}")
        axes[1, column].set_title("response, log scale")
    for ax in axes.flat:
        ax.axis("off")
    return figure
