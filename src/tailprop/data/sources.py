"""Where pictures with a class come from: folders, parquet snapshots, timm's dataset names, scikit-learn's digits.

A source knows its classes and labels without reading a picture, and reads one picture at a time.
"""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from PIL import Image

__all__ = ["SPLITS", "Digits", "Folder", "Parquet", "Source", "TimmDataset", "check_labels", "split_hash"]

_SHOW_BYTES = 1 << 30  # unpacking more than this takes long enough for a progress bar
SPLITS: Final = {"train": ("train", "training"), "validation": ("validation", "val", "valid", "test")}


class Source(Protocol):
    """Pictures with labels. `labels[i]` is an index into `classes`."""

    classes: tuple[str, ...]
    labels: np.ndarray

    def read(self, index: int) -> Image.Image: ...  # may raise OSError for a broken file

    def name(self, index: int) -> str: ...


class Folder:
    """One folder for each class: root/train/cat/1.jpg and root/val/cat/2.jpg, or root/cat/1.jpg with a share held out."""

    def __init__(self, root: Path, split: str, held_out: float = 0.2) -> None:
        from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes, make_dataset

        self.root = _existing(root)
        given = _split_folders(root)
        where = given[split]
        if given["train"] is not None and where is None:
            raise ValueError(f"{root} has a folder for training but none named {' or '.join(SPLITS[split])}")
        try:
            names = [name for name in find_classes(str(given["train"] or where or root))[0] if not name.startswith(".")]
            index = {name: place for place, name in enumerate(names)}
            pictures = make_dataset(str(where or root), index, extensions=IMG_EXTENSIONS, allow_empty=True)
        except FileNotFoundError as error:
            raise ValueError(f"{root}: {error}; expected one folder of pictures for each class") from None
        _refuse_unknown_classes(where or root, names)
        self.share = held_out if where is None else None  # held out of one tree; none = there is a split
        if where is None:  # one tree: hold out a share, chosen by each file's own name so that new files move no old ones
            pictures = [p for p in pictures if _is_held_out(p[0], root, held_out) == (split != "train")]
        if not pictures:
            raise ValueError(f"no pictures for {split} under {where or root}")
        self.classes = tuple(names)
        self.paths = [Path(path) for path, _ in pictures]
        self.labels = np.array([label for _, label in pictures])

    def read(self, index: int) -> Image.Image:
        return Image.open(self.paths[index])

    def name(self, index: int) -> str:
        return str(self.paths[index].relative_to(self.root))


class Parquet:
    """A Hugging Face image snapshot: train-*.parquet and validation-*.parquet in one folder (or in its `data`).

    The `datasets` library turns the shards into an Arrow file in its cache once, and maps that into memory.
    """

    def __init__(self, root: Path, split: str, cache: Path | None = None) -> None:
        import datasets

        self.shards = _find_shards(_existing(root), split)
        _check_shards(self.shards)
        if sum(shard.stat().st_size for shard in self.shards) < _SHOW_BYTES:
            datasets.disable_progress_bars()
        try:
            table = datasets.load_dataset(
                "parquet",
                data_files={split: [str(path) for path in self.shards]},
                split=split,
                cache_dir=str(cache) if cache else None,
            )
        except datasets.exceptions.DatasetGenerationError as error:
            raise ValueError(f"cannot read the {split} shards under {root}: {error.__cause__ or error}") from None
        assert isinstance(table, datasets.Dataset)
        self.image_column, label_column = _columns(table.features, self.shards[0])
        labels = table.features[label_column]
        self.labels = np.asarray(table.with_format("numpy")[label_column])
        names = labels.names if isinstance(labels, datasets.ClassLabel) else range(int(self.labels.max(initial=-1)) + 1)
        self.classes = tuple(map(str, names))
        self.chunks = _byte_chunks(table.data.column(self.image_column))
        self.starts = np.cumsum([0] + [len(chunk) for chunk in self.chunks])

    def read(self, index: int) -> Image.Image:
        which = int(np.searchsorted(self.starts, index, side="right")) - 1
        cell = self.chunks[which][index - int(self.starts[which])]
        if not cell.is_valid:
            raise OSError("the row holds no picture")
        return Image.open(io.BytesIO(cell.as_buffer()))

    def name(self, index: int) -> str:
        return f"{self.shards[0].parent.name}/{self.shards[0].name.split('-')[0]} row {index}"


class TimmDataset:
    """A dataset timm knows by name, such as torch/cifar10 or hfds/timm/imagenet-1k-wds."""

    def __init__(self, name: str, root: Path | None, split: str, download: bool = False) -> None:
        from timm.data import create_dataset

        try:
            self.data = create_dataset(name, root=str(root) if root else None, split=split, download=download)
            self.labels = np.array(_timm_labels(self.data))
        except (RuntimeError, AssertionError, FileNotFoundError) as error:
            raise ValueError(f"timm cannot open {name!r} under {root}: {error or 'not found'}") from None
        reader = getattr(self.data, "reader", self.data)
        names = (
            getattr(self.data, "classes", None) or getattr(reader, "class_to_idx", None) or range(int(self.labels.max()) + 1)
        )
        self.classes = tuple(map(str, names))

    def read(self, index: int) -> Image.Image:
        return self.data[index][0]

    def name(self, index: int) -> str:
        return f"picture {index}"


class Digits:
    """scikit-learn's 1,797 handwritten digits, 8x8 scans; the same third is always held out."""

    def __init__(self, split: str) -> None:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        raw, labels = load_digits(return_X_y=True)
        train, test = train_test_split(np.arange(len(labels)), test_size=1 / 3, stratify=labels, random_state=0)
        self.rows = train if split == "train" else test
        self.images = np.round(raw.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        self.labels = labels[self.rows]
        self.classes = tuple(str(digit) for digit in range(10))

    def read(self, index: int) -> Image.Image:
        return Image.fromarray(self.images[self.rows[index]]).resize((32, 32), Image.Resampling.BICUBIC)

    def name(self, index: int) -> str:
        return f"digit {self.rows[index]}"


def split_hash(source: Source) -> str:
    """A fingerprint of which pictures a split holds, in which order, with which labels."""
    digest = hashlib.sha256("\n".join(source.classes).encode())
    digest.update(np.ascontiguousarray(source.labels, dtype=np.int64).tobytes())
    if isinstance(source, Folder):
        digest.update("\n".join(source.name(i) for i in range(len(source.labels))).encode())
    elif isinstance(source, Parquet):
        digest.update("\n".join(f"{shard.name} {shard.stat().st_size}" for shard in source.shards).encode())
    return digest.hexdigest()[:16]


def check_labels(source: Source, num_classes: int, what: str, advice: str = "") -> None:
    """Refuse a label that has no output."""
    wrong = np.flatnonzero((source.labels < 0) | (source.labels >= num_classes))
    if len(wrong) > 0:
        raise ValueError(
            f"label {source.labels[wrong[0]]} of {source.name(int(wrong[0]))} ({what}) is outside the {num_classes} classes "
            f"0 to {num_classes - 1}, and so are {len(wrong) - 1} more; mend the labels{advice}"
        )


def _existing(root: Path) -> Path:
    if not root.is_dir():
        raise ValueError(f"no folder {root}; give the root of the data with --data.root")
    return root


def _split_folders(root: Path) -> dict[str, Path | None]:
    """The folders of the splits; none where the folders are classes, of which one may be called train."""
    present = [path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
    named = {split: next((root / name for name in names if name in present), None) for split, names in SPLITS.items()}
    if len(present) > 1 and sum(path is not None for path in named.values()) == 1:
        return dict.fromkeys(SPLITS)
    return named


def _refuse_unknown_classes(where: Path, names: Sequence[str]) -> None:
    extra = sorted({p.name for p in where.iterdir() if p.is_dir() and not p.name.startswith(".")} - set(names))
    if extra:
        raise ValueError(f"{where} has classes that training does not know: {', '.join(extra[:5])}")


def _is_held_out(path: str, root: Path, share: float) -> bool:
    digest = hashlib.sha256(Path(path).relative_to(root).as_posix().encode()).digest()
    return int.from_bytes(digest[:4]) < share * 2**32


def _find_shards(root: Path, split: str) -> list[Path]:
    for folder in (root, root / "data"):
        for name in SPLITS[split]:
            if shards := sorted(folder.glob(f"{name}-*.parquet")):
                return shards
    wanted = " or ".join(f"{name}-*.parquet" for name in SPLITS[split])
    raise ValueError(f"no {wanted} under {root}; give the folder of a Hugging Face image snapshot")


def _check_shards(shards: Sequence[Path]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for shard in shards:
        try:
            pq.ParquetFile(shard).close()  # reads the footer, which a truncated file has lost
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{shard} is damaged ({str(error).splitlines()[0]}); download it again") from None
    count = shards[0].stem.rpartition("-of-")[2]
    if count.isdigit() and int(count) != len(shards):
        raise ValueError(f"{shards[0].parent} holds {len(shards)} of {int(count)} {shards[0].name.split('-')[0]} shards")


def _columns(features: Any, shard: Path) -> tuple[str, str]:
    """The columns that hold the picture and its label."""
    image = next((n for n in ("image", "img", "jpg") if n in features), None)
    label = next((n for n in ("label", "labels", "fine_label", "cls") if n in features), None)
    if image is None or label is None:
        raise ValueError(f"{shard} needs the columns image and label, it has {', '.join(features)}")
    return image, label


def _byte_chunks(column: Any) -> list[Any]:
    """The encoded pictures of an Arrow column, chunk by chunk; asking `datasets` for a row takes as long as decoding it."""
    import pyarrow as pa

    return [chunk.field("bytes") if pa.types.is_struct(chunk.type) else chunk for chunk in column.chunks]


def _timm_labels(data: Any) -> Sequence[int]:
    if hasattr(data, "targets"):
        return data.targets
    samples = getattr(getattr(data, "reader", None), "samples", None)
    if samples is None:
        raise ValueError("this dataset can only be read in sequence; take a parquet snapshot or a folder instead")
    return [label for _, label in samples]
