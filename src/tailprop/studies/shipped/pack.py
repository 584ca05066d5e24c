"""Store the best weights of a run in half precision, as a shipped model.

    python -m tailprop.studies.shipped.pack runs/denoise denoise

writes `model.safetensors` and `model.json` into the folder NAME of `tailprop/models`. The card, `README.md`, is written by
hand, with numbers measured on the packed weights. Half precision keeps 11 bits of a weight.
"""

import sys
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from tailprop.engine.checkpoint import read_state_dict, save_tensors
from tailprop.engine.run_settings import find_task_name, find_weights, read_metadata
from tailprop.engine.shipped import SHIPPED_FOLDER
from tailprop.tasks import find_spec
from tailprop.utils.files import make_folder, write_json
from tailprop.utils.text import say

__all__ = ["MOST_BYTES", "pack"]

MOST_BYTES: Final = 3_000_000  # of one model


def pack(run: Path, name: str, what: str, metric: str, folder: Path = SHIPPED_FOLDER) -> Path:
    """Write a shipped model; `what` and `metric` are its line in `tailprop models`."""
    task = find_task_name(run, "")
    if not task:
        raise ValueError(f"{run} is not a run folder with settings")
    weights = find_weights(run)
    state = {key: _half(value) for key, value in read_state_dict(weights).items()}
    to = folder / name
    make_folder(to)
    metadata = {key: value for key, value in read_metadata(weights).items() if key not in ("format", "sha256")}
    save_tensors(to / weights.with_suffix(".safetensors").name, state, metadata)
    size = find_weights(to).stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{name} has {size / 1e6:.2f} MB; a shipped model has at most {MOST_BYTES / 1e6:g}")
    row: dict[str, Any] = dict(
        task=find_spec(task).name,
        what=what,
        metric=metric,
        parameters=sum(value.numel() for value in state.values()),
        bytes=size,
    )
    write_json(to / "model.json", row)
    return to


def _half(value: Tensor) -> Tensor:
    return value.to(torch.float16) if value.dtype == torch.float32 else value


if __name__ == "__main__":
    run_folder, called, does, measured = sys.argv[1:5]
    say(pack(Path(run_folder), called, does, measured))
