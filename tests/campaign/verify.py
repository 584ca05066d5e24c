"""What it costs to verify the weights of a large model before they are read.

python -m tests.campaign.verify --out results/verify.csv
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch

import tailprop  # noqa: F401 - registers our models
from tailprop.engine import checkpoint
from tailprop.engine.integrity import check_all_finite, check_intact
from tailprop.runtime.provenance import provenance
from tailprop.tasks.common.bench import write_rows

ROUNDS = 7


def best_seconds(act: Callable[[Path], object], path: Path) -> float:
    """The best of some rounds. The file is in memory after the first; its time stamp changes, or the answer is remembered."""
    took = []
    for _ in range(ROUNDS):
        path.touch()
        began = time.perf_counter()
        act(path)
        took.append(time.perf_counter() - began)
    return min(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tailprop_base")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = timm.create_model(given.model)
    with tempfile.TemporaryDirectory() as folder:
        archive, weights = Path(folder, "last.pt"), Path(folder, "model.safetensors")
        checkpoint.save(archive, {"model": model.state_dict()})
        checkpoint.save_weights(weights, model, {})
        row = {
            "model": given.model,
            "megabytes": round(weights.stat().st_size / 1e6),
            "crc_of_checkpoint_s": f"{best_seconds(check_intact, archive):.3f}",
            "sha256_of_weights_s": f"{best_seconds(check_intact, weights):.3f}",
            "finite_s": f"{best_seconds(lambda _: check_all_finite(model.state_dict()), weights):.3f}",
            "read_s": f"{best_seconds(checkpoint.read_checkpoint, weights):.3f}",
        }
    write_rows(given.out, [row | {"threads": "1", "dtype": "float32"}], provenance())


if __name__ == "__main__":
    main()
