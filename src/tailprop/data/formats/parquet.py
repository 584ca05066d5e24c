"""Image snapshots of Hugging Face: parquet shards with a column of images and one of labels, read in place.

Nothing is copied to disk (see `parquet_pages`). Only shards in an unusual encoding, or with `unpack`,
are read through the `datasets` library, which unpacks them once into its cache.
"""

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from PIL import Image

from tailprop.data.formats.parquet_guard import check_shards
from tailprop.data.formats.parquet_pages import BinaryColumn, can_read
from tailprop.data.images import open_image
from tailprop.data.splits import SPLITS, Contents, existing_folder, numbered_classes
from tailprop.runtime.distributed import print_main
from tailprop.utils.errors import first_line
from tailprop.utils.parsing import parse_json

__all__ = ["Parquet"]

_IMAGES: Final = ("image", "img", "jpg")
_COSTLY: Final = 4 << 20  # bytes decompressed for a single image
_MOST_COMPARED: Final = 2 << 30  # largest size of shards whose images are compared with other splits
_LABELS: Final = ("label", "labels", "fine_label", "cls")


class Encoded(Protocol):
    """Encoded images by row; None where a row has no image."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Any: ...  # supports the buffer protocol


class Parquet:
    """A Hugging Face image snapshot: train-*.parquet and validation-*.parquet in one folder (or in its `data`).

    Args:
        root: The folder.
        split: "train" or "validation".
        cache: Folder for unpacked shards; None = the cache of the `datasets` library.
        unpack: Unpack the shards even if they can be read in place.
    """

    def __init__(self, root: Path, split: str, cache: Path | None = None, unpack: bool = False) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.shards = _find_shards(existing_folder(root), split)
        check_shards(self.shards, _IMAGES, _LABELS)
        schemas = _check_shards(self.shards)
        self.image, label = _columns(schemas, self.shards)
        field = schemas[0].field(self.image).type
        self.bytes_name = f"{self.image}.bytes" if pa.types.is_struct(field) else self.image
        self.parts = _unpack(self.shards, self.image, split, cache) if unpack else self._open(split, cache)
        self.starts = [0, *accumulate(len(part) for part in self.parts)]
        self.shard_starts = [0, *accumulate(pq.read_metadata(shard).num_rows for shard in self.shards)]
        self.labels = self._read_labels(label).to_numpy()
        if len(self.labels) == 0:
            raise ValueError(f"no images for {split} under {root}: its shards are empty")
        names = _class_names(schemas[0], label, self.shards[0])
        self.classes = names or numbered_classes(self.labels, self.name)

    def _open(self, split: str, cache: Path | None) -> list[Encoded]:
        odd = None
        for shard in self.shards:
            with _reading(shard):
                odd = odd or (None if can_read(shard, self.bytes_name) else shard)
        if odd is None:
            columns = []
            for shard in self.shards:
                with _reading(shard):
                    columns.append(BinaryColumn(shard, self.bytes_name))
            if _is_costly(columns[0]):
                print_main(f"{split} shards are compressed in large pages; if loading is slow, --data.unpack unpacks them once")
            return list(columns)
        print_main(f"{odd.name} cannot be read in place; the {split} shards are unpacked into a cache once")
        return _unpack(self.shards, self.image, split, cache)

    def _read_labels(self, name: str) -> Any:
        """All labels as one Arrow array."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        chunks = []
        for shard in self.shards:
            with _reading(shard):
                chunks += pq.read_table(shard, columns=[name]).column(name).chunks
        labels = pa.chunked_array(chunks, pq.read_schema(self.shards[0]).field(name).type)
        if not pa.types.is_integer(labels.type):
            raise ValueError(
                f"{self.shards[0]}: labels must be integers from 0 on, but column {name} has type {labels.type}; convert it"
            )
        if labels.null_count > 0:
            first = int(np.argmax(labels.is_null().to_numpy()))
            raise ValueError(
                f"{self.shards[0].parent}: {self.name(first)} and {labels.null_count - 1} more have no label; remove these rows"
            )
        return labels

    def read(self, index: int) -> Image.Image:
        encoded = self._encoded(index)
        if encoded is None:
            raise OSError("the row has no image")
        return open_image(io.BytesIO(encoded))

    def _encoded(self, index: int) -> Any:
        which = bisect_right(self.starts, index) - 1
        return self.parts[which][index - self.starts[which]]

    def contents(self) -> Contents | None:
        """The encoded images; None if there are so many that reading each would take minutes."""
        if sum(shard.stat().st_size for shard in self.shards) > _MOST_COMPARED:
            return None
        sizes = [len(memoryview(self._encoded(i) or b"")) for i in range(len(self.labels))]
        return Contents(sizes, lambda place: bytes(self._encoded(place) or b""))

    def name(self, index: int) -> str:
        which = bisect_right(self.shard_starts, index) - 1
        shard, row = self.shards[which], index - self.shard_starts[which]
        paths = _paths(shard, self.image)
        path = paths[row] if paths else None
        return f"{shard.name} row {row}" + (f" ({path})" if path else "")


def _find_shards(root: Path, split: str) -> list[Path]:
    for folder in (root, root / "data"):
        for name in SPLITS[split]:
            if shards := sorted(folder.glob(f"{name}-*.parquet")):
                return [_check_is_file(shard) for shard in shards]
    wanted = " or ".join(f"{name}-*.parquet" for name in SPLITS[split])
    raise ValueError(f"no {wanted} under {root}; give the folder of a Hugging Face image snapshot")


def _check_is_file(shard: Path) -> Path:
    if not shard.is_file():  # opening a pipe would wait for someone to write into it
        raise ValueError(f"{shard} is not a file, or a link that leads nowhere; remove it")
    return shard


def _check_shards(shards: Sequence[Path]) -> list[Any]:
    """The schemas of the shards; reading one fails for a truncated file, which has lost its footer."""
    import pyarrow.parquet as pq

    schemas = []
    for shard in shards:
        with _reading(shard):
            schemas.append(pq.read_schema(shard))
            str(schemas[-1].names)  # decodes them
    count = shards[0].stem.rpartition("-of-")[2]
    if count.isdigit() and int(count) != len(shards):
        raise ValueError(
            f"{shards[0].parent} has {len(shards)} of {int(count)} {shards[0].name.split('-')[0]} shards; download the rest"
        )
    return schemas


@contextmanager
def _reading(shard: Path) -> Iterator[None]:
    """Name the shard in whatever is raised while it is read: in a corrupt footer a name may not be text."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:  # UnicodeDecodeError is a ValueError
        if shard.name in str(error):
            raise
        raise ValueError(f"{shard} is corrupt ({first_line(error)}); download it again") from None


def _class_names(schema: Any, label: str, shard: Path) -> tuple[str, ...]:
    """The class names in the metadata that `datasets` writes; none if the labels are plain numbers."""
    described = (schema.metadata or {}).get(b"huggingface")
    if described is None:
        return ()
    found = parse_json(described, f"the metadata of {shard}")
    for key in ("info", "features", label):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise ValueError(f"{shard}: its metadata does not describe the column {label}; write it again with `datasets`")
    if found.get("_type") != "ClassLabel":
        return ()
    names = found.get("names")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"{shard}: its metadata has no list of class names for the column {label}; write it again with `datasets`"
        )
    return tuple(names)


def _columns(schemas: Sequence[Any], shards: Sequence[Path]) -> tuple[str, str]:
    """The columns that hold the image and its label."""
    image = next((n for n in _IMAGES if n in schemas[0].names), None)
    label = next((n for n in _LABELS if n in schemas[0].names), None)
    for schema, shard in zip(schemas, shards, strict=True):
        if image not in schema.names or label not in schema.names:
            raise ValueError(f"{shard} needs the columns image and label, but has {', '.join(schema.names)}")
        if schema.field(image).type != schemas[0].field(image).type:
            raise ValueError(
                f"{shard} stores images in another type than {shards[0].name}; the shards are from different snapshots"
            )
    assert image is not None
    assert label is not None
    return image, label


def _is_costly(column: BinaryColumn) -> bool:
    try:
        return column.cost() > _COSTLY
    except OSError:  # a corrupt page is reported when it is read
        return False


@lru_cache(4)
def _paths(shard: Path, image: str) -> list[str | None]:
    """Original file names of the images in a shard; empty if it has none or that column is corrupt."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(shard) as file:
            names = [file.schema.column(i).path for i in range(len(file.schema))]
            if f"{image}.path" not in names:
                return []
            cells = file.read(columns=[f"{image}.path"]).column(image).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return []
    return [cell and cell.get("path") for cell in cells]


def _unpack(shards: Sequence[Path], image: str, split: str, cache: Path | None) -> list[Encoded]:
    """The encoded images of shards, from a copy that `datasets` writes once and maps into memory."""
    import datasets

    files = {split: [str(path) for path in shards]}
    try:
        table = datasets.load_dataset("parquet", data_files=files, split=split, cache_dir=str(cache) if cache else None)
    except datasets.exceptions.DatasetGenerationError as error:
        raise ValueError(f"cannot read the {split} shards under {shards[0].parent}: {error.__cause__ or error}") from None
    return [_ArrowColumn(chunk) for chunk in table.data.column(image).chunks]


class _ArrowColumn:
    """Bytes of an Arrow column or of structs with such a field. Indexing `datasets` would take as long as decoding."""

    def __init__(self, chunk: Any) -> None:
        import pyarrow as pa

        self.values = chunk.field("bytes") if pa.types.is_struct(chunk.type) else chunk

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> Any:
        cell = self.values[row]
        return cell.as_buffer() if cell.is_valid else None
