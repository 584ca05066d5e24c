"""Hugging Face's image snapshots: parquet shards with a column of pictures and one of labels, read where they lie.

Nothing is copied: shards are mapped into memory (see `parquet_pages`). Only what is stored in an unusual way, or is told to,
goes through the `datasets` library, which unpacks it once into a cache of its own.
"""

import io
import sys
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from PIL import Image

from tailprop.data.parquet_pages import BinaryColumn, can_read

__all__ = ["SPLITS", "Parquet", "existing_folder"]

SPLITS: Final = {"train": ("train", "training"), "validation": ("validation", "val", "valid", "test")}
_IMAGES: Final = ("image", "img", "jpg")
_LABELS: Final = ("label", "labels", "fine_label", "cls")


class Encoded(Protocol):
    """Encoded pictures by row, None where there is none."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Any: ...  # anything with a buffer


class Parquet:
    """A Hugging Face image snapshot: train-*.parquet and validation-*.parquet in one folder (or in its `data`).

    Args:
        root: The folder.
        split: "train" or "validation".
        cache: Where shards are unpacked, if they are; none = the cache of the `datasets` library.
        unpack: Unpack them, though they could be read in place.
    """

    def __init__(self, root: Path, split: str, cache: Path | None = None, unpack: bool = False) -> None:
        import datasets
        import pyarrow as pa

        self.shards = _find_shards(existing_folder(root), split)
        schemas = _check_shards(self.shards)
        features = datasets.Features.from_arrow_schema(schemas[0])
        self.image, label = _columns(schemas, self.shards)
        field = schemas[0].field(self.image).type
        self.bytes_name = f"{self.image}.bytes" if pa.types.is_struct(field) else self.image
        self.parts = _unpack(self.shards, self.image, split, cache) if unpack else self._open(split, cache)
        self.starts = [0, *accumulate(len(part) for part in self.parts)]
        labels = self._read_labels(label)
        self.labels = labels.to_numpy()
        kind = features[label]
        names = kind.names if isinstance(kind, datasets.ClassLabel) else range(int(self.labels.max(initial=-1)) + 1)
        self.classes = tuple(map(str, names))

    def _open(self, split: str, cache: Path | None) -> list[Encoded]:
        odd = next((shard for shard in self.shards if not can_read(shard, self.bytes_name)), None)
        if odd is None:
            return [BinaryColumn(shard, self.bytes_name) for shard in self.shards]
        print(f"{odd.name} cannot be read in place; the {split} shards are unpacked into a cache once", file=sys.stderr)
        return _unpack(self.shards, self.image, split, cache)

    def _read_labels(self, name: str) -> Any:
        """All labels as one Arrow array."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        labels = pa.chunked_array([c for s in self.shards for c in pq.read_table(s, columns=[name]).column(name).chunks])
        if not pa.types.is_integer(labels.type):
            raise ValueError(
                f"{self.shards[0]}: labels are whole numbers from 0 on, column {name} holds {labels.type}; number the classes"
            )
        if labels.null_count > 0:
            first = int(np.argmax(labels.is_null().to_numpy()))
            raise ValueError(
                f"{self.shards[0].parent}: {self.name(first)} has no label, nor have {labels.null_count - 1} more; "
                "remove such rows"
            )
        return labels

    def read(self, index: int) -> Image.Image:
        which = bisect_right(self.starts, index) - 1
        encoded = self.parts[which][index - self.starts[which]]
        if encoded is None:
            raise OSError("the row holds no picture")
        return Image.open(io.BytesIO(encoded))

    def name(self, index: int) -> str:
        import pyarrow.parquet as pq

        row = index
        for shard in self.shards:  # only asked for what is broken: no need to keep their lengths
            rows = pq.read_metadata(shard).num_rows
            if row < rows:
                break
            row -= rows
        path = _path(shard, self.image, row)
        return f"{shard.name} row {row}" + (f" ({path})" if path else "")


def existing_folder(root: Path) -> Path:
    if not root.is_dir():
        raise ValueError(f"no folder {root}; give the root of the data with --data.root")
    return root


def _find_shards(root: Path, split: str) -> list[Path]:
    for folder in (root, root / "data"):
        for name in SPLITS[split]:
            if shards := sorted(folder.glob(f"{name}-*.parquet")):
                return shards
    wanted = " or ".join(f"{name}-*.parquet" for name in SPLITS[split])
    raise ValueError(f"no {wanted} under {root}; give the folder of a Hugging Face image snapshot")


def _check_shards(shards: Sequence[Path]) -> list[Any]:
    """Their schemas; reading them reads the footer, which a truncated file has lost."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schemas = []
    for shard in shards:
        try:
            schemas.append(pq.read_schema(shard))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{shard} is damaged ({str(error).splitlines()[0]}); download it again") from None
    count = shards[0].stem.rpartition("-of-")[2]
    if count.isdigit() and int(count) != len(shards):
        raise ValueError(f"{shards[0].parent} holds {len(shards)} of {int(count)} {shards[0].name.split('-')[0]} shards")
    return schemas


def _columns(schemas: Sequence[Any], shards: Sequence[Path]) -> tuple[str, str]:
    """The columns that hold the picture and its label."""
    image = next((n for n in _IMAGES if n in schemas[0].names), None)
    label = next((n for n in _LABELS if n in schemas[0].names), None)
    for schema, shard in zip(schemas, shards, strict=True):
        if image not in schema.names or label not in schema.names:
            raise ValueError(f"{shard} needs the columns image and label, it has {', '.join(schema.names)}")
        if schema.field(image).type != schemas[0].field(image).type:
            raise ValueError(f"{shard} stores its pictures in another way than {shards[0].name}; they are of two snapshots")
    assert image is not None
    assert label is not None
    return image, label


def _path(shard: Path, image: str, row: int) -> str | None:
    """The name a picture had before it came into a shard, if it is written there."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(shard) as file:
        names = [file.schema.column(i).path for i in range(len(file.schema))]
        if f"{image}.path" not in names:
            return None
        cell = file.read(columns=[f"{image}.path"]).column(image)[row].as_py()
    return cell.get("path") if cell else None


def _unpack(shards: Sequence[Path], image: str, split: str, cache: Path | None) -> list[Encoded]:
    """The encoded pictures of shards, through a copy that `datasets` makes once and maps into memory."""
    import datasets

    files = {split: [str(path) for path in shards]}
    try:
        table = datasets.load_dataset("parquet", data_files=files, split=split, cache_dir=str(cache) if cache else None)
    except datasets.exceptions.DatasetGenerationError as error:
        raise ValueError(f"cannot read the {split} shards under {shards[0].parent}: {error.__cause__ or error}") from None
    return [_ArrowColumn(chunk) for chunk in table.data.column(image).chunks]


class _ArrowColumn:
    """Bytes of an Arrow column, or of structs that hold them. Asking `datasets` for a row would take as long as decoding it."""

    def __init__(self, chunk: Any) -> None:
        import pyarrow as pa

        self.values = chunk.field("bytes") if pa.types.is_struct(chunk.type) else chunk

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> Any:
        cell = self.values[row]
        return cell.as_buffer() if cell.is_valid else None
