"""The settings under which models are measured, one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tailprop.studies.bench.options import Bench

__all__ = ["Setting", "settings_of"]

_PASSES = {"infer": 1.0, "latency": 1.0, "train": 3.0}  # a backward pass takes as long as two forward passes


@dataclass(frozen=True)
class Setting:
    """What all models do in the same interleaved rounds."""

    mode: str
    form: str
    dtype: str
    batch_size: int
    size_px: int
    threads: int

    def __str__(self) -> str:
        return f"{self.mode}, {self.form}, {self.dtype}, batch {self.batch_size}, {self.size_px} px, {self.threads} threads"

    @property
    def work(self) -> float:
        """The work of a round, for the progress bar; a warm-up of oneDNN or a compiler is not counted."""
        return _PASSES[self.mode] * self.batch_size * self.size_px**2 / 224**2

    def columns(self) -> dict[str, str]:
        """The setting as columns of the table."""
        dtype = {"fp32": "float32", "bf16": "bfloat16"}[self.dtype]
        sizes = {"batch_size": str(self.batch_size), "size_px": str(self.size_px)}
        return {"threads": str(self.threads), "dtype": dtype, "form": self.form} | sizes


def settings_of(options: Bench) -> Iterator[Setting]:
    """All combinations that exist: latency has one batch size, and an optimized model is not trained."""
    for threads, size_px, mode, form, dtype in product(
        options.threads, options.size_px, options.modes, options.forms, options.dtype
    ):
        if form == "optimized" and mode == "train":
            continue
        for batch_size in (1,) if mode == "latency" else options.batch_size:
            yield Setting(mode, form, dtype, batch_size, size_px, threads)
