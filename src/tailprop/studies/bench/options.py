"""Options of `tailprop bench`, which are parsed without PyTorch."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from tailprop.engine.settings import setting
from tailprop.utils.validation import check_at_least, check_output_file

__all__ = ["CPU_PEERS", "Bench"]

MODELS: Final = ("tailprop_tiny", "convnext_tiny", "swin_tiny_patch4_window7_224", "vheat_tiny")
# backbones of about the parameters or the multiply-adds of Tiny, ours, published ones of its kind, and those chosen for CPUs
CPU_PEERS: Final = (
    *MODELS,
    "waveformer_tiny",
    "mobilenetv4_conv_medium",
    "mobilenetv4_conv_large",
    "mobilenetv4_hybrid_medium",
    "repvit_m1_5",
    "repvit_m2_3",
    "fastvit_sa24",
    "lowformer_b3",
    "mambaout_tiny",
    "convnextv2_tiny",
    "starnet_s4",
)


@dataclass(frozen=True)
class Bench:
    """Images per second of several models, measured in interleaved rounds."""

    models: tuple[str, ...] = MODELS
    """timm model names; the others are compared with the first."""
    suite: Literal["cpu"] | None = None
    """cpu: Tiny, its peers and backbones chosen for CPUs; eager and optimized, with memory and products. Takes about half an
    hour on two free cores. It replaces models, modes, forms, memory and products."""
    vheat_code: Path | None = None
    """Path of vHeat's published classification/models/vHeat.py, to include it."""
    modes: tuple[Literal["infer", "train", "latency"], ...] = ("infer", "train")
    """Forward passes without gradients, training steps (forward, backward, AdamW), forward passes of one image."""
    batch_size: tuple[int, ...] = setting((8,), aliases=("batch",))
    """Images per batch; several are measured one after the other, as are several values of the options below."""
    size_px: tuple[int, ...] = (224,)
    """Image size."""
    dtype: tuple[Literal["fp32", "bf16"], ...] = ("fp32",)
    """bf16: under autocast; an optimized model may use BF16 then."""
    forms: tuple[Literal["eager", "compiled", "optimized"], ...] = ("eager",)
    """eager; compiled by torch.compile; optimized by tailprop.optimize, which has no training step."""
    rounds: int = 12
    """Rounds after one warm-up round."""
    threads: tuple[int, ...] = (2,)
    """CPU threads."""
    clock: Literal["wall", "cpu"] = "wall"
    """cpu: CPU time of this process, for one thread on a machine that others use; waiting for them does not count."""
    memory: bool = False
    """Also measure the peak memory of a training step, on a CPU in a new process for each model."""
    products: bool = False
    """Also measure how fast this machine computes the matrix products of each model on their own."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device: cpu or cuda."""
    out: Path | None = None
    """CSV file for the results, written after every setting."""
    resume: bool = False
    """Keep the settings that are in the CSV file already, and measure the others."""
    figure: Path | None = None
    """Image of images per second over multiply-adds and over parameters."""

    def resolved(self) -> "Bench":
        """The options with the suite in place."""
        if self.suite is None:
            return self
        return replace(
            self,
            suite=None,
            models=CPU_PEERS,
            modes=("infer", "latency", "train"),
            forms=("eager", "optimized"),
            dtype=("fp32", "bf16"),
            memory=True,
            products=True,
        )

    def check(self) -> None:
        from tailprop.tasks.common.bench import check_bench

        check_at_least("rounds", self.rounds, 1)
        for name, least in (("batch_size", 1), ("threads", 1), ("size_px", 32)):
            for value in getattr(self, name):
                check_at_least(name, value, least)
        for name in ("modes", "batch_size", "size_px", "dtype", "forms", "threads"):
            if not getattr(self, name):
                raise ValueError(f"no {name} given; give at least one")
        if self.clock == "cpu" and (self.device != "cpu" or self.threads != (1,)):
            raise ValueError("--clock cpu measures one thread: use --threads 1, and the device cpu")
        if self.resume and self.out is None:
            raise ValueError("--resume needs --out, the file to continue")
        if self.vheat_code is not None and not (self.vheat_code.is_file() and self.vheat_code.suffix == ".py"):
            raise ValueError(
                f"no Python file {self.vheat_code}; --vheat-code takes classification/models/vHeat.py of vHeat's repository"
            )
        check_output_file("--out", self.out)
        check_output_file("--figure", self.figure)
        check_bench(self.models, self.device)
