"""Benchmarks: `tailprop bench NAME`. A new one is a file and a row in `BENCHES`.

Benchmarks of whole networks are in the folders of their tasks.
"""

from typing import Final

__all__ = ["BENCHES", "DEFAULT_BENCH"]

# name: (module, dataclass of its options, what it measures), as in `COMMANDS` of the command line
BENCHES: Final = {
    "models": ("tailprop.studies.bench.models", "tailprop.studies.bench.options:Bench", "images per second of backbones"),
    "transform": (
        "tailprop.studies.bench.transform",
        "tailprop.studies.bench.transform_options:TransformBench",
        "time of the operator by size, and how each axis is best transformed",
    ),
}
DEFAULT_BENCH: Final = "models"  # of a command without a name
