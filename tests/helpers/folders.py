"""Images on disk for tests: folders of classes, and snapshots in parquet."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.helpers.runs import write_recipe


def jpeg(colour: int, size: tuple[int, int] = (40, 36)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (colour, 255 - colour, 90)).save(buffer, "JPEG")
    return buffer.getvalue()


def make_folder(root: Path, count: int = 8, splits: tuple[str, ...] = ("train", "val")) -> Path:
    """Two classes that differ in colour."""
    for split in splits:
        for label, name in enumerate(("blue", "red")):
            (root / split / name).mkdir(parents=True)
            for k in range(count):
                (root / split / name / f"{k}.jpg").write_bytes(jpeg(60 + 140 * label + k))
    return root


def make_snapshot(root: Path, labels: Mapping[str, Sequence[int | None]], shards: int = 2, classes: int = 1000) -> Path:
    """Parquet shards as Hugging Face writes them, class names included."""
    root.mkdir(parents=True, exist_ok=True)
    feature = {"image": {"_type": "Image"}, "label": {"names": [f"class {i}" for i in range(classes)], "_type": "ClassLabel"}}
    metadata = {b"huggingface": json.dumps({"info": {"features": feature}}).encode()}
    for split, values in labels.items():
        for k, part in enumerate(np.array_split(np.array(values, dtype=object), shards)):
            rows = [{"image": {"bytes": jpeg((v or 0) % 256), "path": None}, "label": v} for v in part]
            schema = pa.schema(
                [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())],
                metadata=metadata,
            )
            table = pa.Table.from_pylist(rows, schema=schema)
            pq.write_table(table, root / f"{split}-{k:05d}-of-{shards:05d}.parquet")
    return root


def folder_recipe(tmp_path: Path, root: Path, **data: object) -> list[str]:
    """Arguments that train the small network on a folder of images."""
    recipe = write_recipe(
        tmp_path / "folder.yaml",
        model={"in_chans": 3},
        data={"source": "folder", "root": str(root), **data},
        optim={"batch_size": 4, "epochs": 2},
        augment={"mixup": 0.0, "cutmix": 0.0},
    )
    return ["train", str(recipe), "--run.out", str(tmp_path / "run")]
