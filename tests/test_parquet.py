"""Snapshots read where they lie: every way of storing them against pyarrow's own reader."""

import io
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import tailprop_cli
from tailprop.data.parquet import Parquet
from tailprop.data.parquet_pages import BinaryColumn, can_read
from tests.folders import folder_recipe, jpeg, make_snapshot


def values(count: int = 300, empty: float = 0.0, seed: int = 0) -> list[bytes | None]:
    """Byte strings of many lengths, some of them equal, some missing."""
    rng = random.Random(seed)
    pool = [rng.randbytes(rng.choice((0, 1, 3, 40, 700))) for _ in range(count // 2)]
    return [None if rng.random() < empty else rng.choice(pool) for _ in range(count)]


def write(path: Path, rows: list[bytes | None], struct: bool = True, nullable: bool = True, **how: Any) -> str:
    if struct:
        kind = pa.struct([pa.field("bytes", pa.binary(), nullable=nullable), pa.field("path", pa.string())])
        cells: list[Any] = [None if nullable and i % 50 == 7 else {"bytes": row, "path": str(i)} for i, row in enumerate(rows)]
    else:
        kind, cells = pa.binary(), list(rows)
    schema = pa.schema([pa.field("image", kind, nullable=nullable), pa.field("label", pa.int64())])
    table = pa.Table.from_pydict({"image": cells, "label": list(range(len(rows)))}, schema=schema)
    pq.write_table(table, path, **how)
    return "image.bytes" if struct else "image"


def read_by_pyarrow(path: Path) -> list[bytes | None]:
    cells = pq.read_table(path).column("image").to_pylist()
    return [cell["bytes"] if isinstance(cell, dict) else cell for cell in cells]


def assert_equal(path: Path, name: str) -> None:
    assert can_read(path, name)
    column, expected = BinaryColumn(path, name), read_by_pyarrow(path)
    order = random.Random(1).sample(range(len(expected)), len(expected))
    for row in (*order, *order[:50]):  # what was indexed once is read again
        got = column[row]
        assert (None if got is None else bytes(got)) == expected[row], row
    assert len(column) == len(expected)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_values_are_pyarrows(compression: str, dictionary: bool, version: str, tmp_path: Path) -> None:
    how: dict[str, Any] = dict(compression=compression, use_dictionary=dictionary, data_page_version=version)
    how |= dict(data_page_size=4096, row_group_size=120, write_batch_size=10, dictionary_pagesize_limit=8192)
    assert_equal(tmp_path / "a.parquet", write(tmp_path / "a.parquet", values(empty=0.1), **how))


@pytest.mark.parametrize("struct", [True, False])
@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("empty", [0.0, 0.3, 1.0])
def test_rows_that_may_be_empty(struct: bool, nullable: bool, empty: float, tmp_path: Path) -> None:
    rows = values(100, empty if nullable else 0.0)
    for version in ("1.0", "2.0"):
        how: dict[str, Any] = dict(data_page_version=version, use_dictionary=False, compression="snappy")
        assert_equal(tmp_path / "a.parquet", write(tmp_path / "a.parquet", rows, struct, nullable, **how))


def test_what_hugging_face_writes_is_not_copied(tmp_path: Path) -> None:
    """Neither compressed nor encoded: a value is a view of the mapped file itself."""
    name = write(tmp_path / "a.parquet", values(), compression="none", use_dictionary=False)
    value = BinaryColumn(tmp_path / "a.parquet", name)[0]
    assert value is not None
    assert type(value.obj).__name__ == "mmap"


def test_other_encodings_are_told_beforehand_and_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_snapshot(tmp_path / "data", {"train": [3, 1, 2]}, shards=1, classes=4)
    (shard,) = root.iterdir()
    encoding = {"image.bytes": "DELTA_LENGTH_BYTE_ARRAY"}
    pq.write_table(pq.read_table(shard), shard, use_dictionary=False, column_encoding=encoding)
    assert not can_read(shard, "image.bytes")
    source = Parquet(root, "train", tmp_path / "cache")
    assert "cannot be read in place" in capsys.readouterr().err
    assert (source.classes[1], source.labels.tolist()) == ("class 1", [3, 1, 2])
    assert [source.read(i).convert("RGB").getpixel((3, 3)) for i in range(3)] == [
        pixel(jpeg(colour)) for colour in source.labels.tolist()
    ]
    assert any((tmp_path / "cache").rglob("*.arrow"))


def test_a_snapshot_is_unpacked_if_so_told(tmp_path: Path) -> None:
    root = make_snapshot(tmp_path / "data", {"train": [3, 1, 2]}, shards=1, classes=4)
    (shard,) = root.iterdir()
    table = pq.read_table(shard)
    field = table.schema.field("image")
    cells = [None, *table.column("image").to_pylist()[1:]]
    pq.write_table(table.set_column(0, field, pa.array(cells, field.type)), shard)
    sources = [Parquet(root, "train", tmp_path / "cache", unpack) for unpack in (True, False)]
    assert any((tmp_path / "cache").rglob("*.arrow"))
    for source in sources:
        assert source.read(2).convert("RGB").getpixel((3, 3)) == pixel(jpeg(2))
        with pytest.raises(OSError, match="the row holds no picture"):
            source.read(0)


def test_a_snapshot_leaves_nothing_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "home"))
    root = make_snapshot(tmp_path / "data", {"train": list(range(40))}, shards=3)
    source = Parquet(root, "train", tmp_path / "cache")
    assert [source.read(i).convert("RGB").getpixel((3, 3)) for i in (39, 0, 13)] == [pixel(jpeg(c)) for c in (39, 0, 13)]
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


def test_damage_within_a_shard_is_an_error_of_the_file(tmp_path: Path) -> None:
    """Whatever bytes are spoilt, values are right or refused: never another exception, never beyond the file."""
    path, rng = tmp_path / "a.parquet", random.Random(0)
    refused = 0
    for compression in ("none", "snappy"):
        name = write(path, values(60), compression=compression, data_page_size=2048, write_batch_size=10)
        whole = bytearray(path.read_bytes())
        body = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")  # the footer stays, or the file is not opened
        for trial in range(150):
            spoilt = bytearray(whole)
            spoilt[rng.randrange(4, body)] = rng.randrange(256)
            path = tmp_path / f"{compression}{trial}.parquet"
            path.write_bytes(spoilt)
            column = BinaryColumn(path, name)
            for row in range(len(column)):
                try:
                    column[row]
                except OSError:
                    refused += 1
    assert refused > 100


def test_spoilt_pages_are_broken_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_snapshot(tmp_path / "data", {"train": [0, 1] * 8, "validation": [0, 1] * 4}, shards=1, classes=2)
    shard = root / "train-00000-of-00001.parquet"
    table = pq.read_table(shard)
    pq.write_table(table, shard, row_group_size=8, compression="none", use_dictionary=False)
    data = bytearray(shard.read_bytes())
    data[pq.read_metadata(shard).row_group(0).column(0).data_page_offset] = 255  # the header of the first page
    shard.write_bytes(data)
    command = folder_recipe(tmp_path, root, source="parquet")
    assert tailprop_cli.main(command) == 2
    err = capsys.readouterr().err
    assert "train-00000-of-00001.parquet row" in err
    assert "a page header is damaged" in err
    assert tailprop_cli.main([*command, "--data.on-broken", "skip", "--run.overwrite"]) == 0


def test_shards_that_do_not_belong_together(tmp_path: Path) -> None:
    root = make_snapshot(tmp_path / "data", {"train": [0, 1, 0, 1]}, classes=2)
    second = root / "train-00001-of-00002.parquet"
    pq.write_table(pa.table({"image": [jpeg(1), jpeg(2)], "label": [0, 1]}), second)
    with pytest.raises(ValueError, match=r"train-00001-of-00002.parquet stores its pictures in another way"):
        Parquet(root, "train")
    pq.write_table(pa.table({"image": [jpeg(1)], "name": ["cat"]}), second)
    with pytest.raises(ValueError, match=r"00001-of-00002.parquet needs the columns image and label, it has image, name"):
        Parquet(root, "train")


def test_labels_in_words_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [jpeg(1)], "label": ["cat"]}), tmp_path / "train-00000-of-00001.parquet")
    with pytest.raises(ValueError, match="labels are whole numbers from 0 on, column label holds string; number the classes"):
        Parquet(tmp_path, "train")


def pixel(encoded: bytes) -> Any:
    return Image.open(io.BytesIO(encoded)).convert("RGB").getpixel((3, 3))
