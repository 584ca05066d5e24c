"""Snapshots read in place: every encoding against pyarrow's reader."""

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import tailprop_cli
from tailprop.data.formats.parquet import Parquet, _paths
from tailprop.data.formats.parquet_guard import check_shards
from tailprop.data.formats.parquet_headers import Page
from tailprop.data.formats.parquet_pages import BinaryColumn, Chunk, _fits, _opened, _unpack, can_read
from tests.helpers.folders import folder_recipe, jpeg, make_snapshot


def values(count: int = 300, empty: float = 0.0, seed: int = 0) -> list[bytes | None]:
    """Byte strings of many lengths, some of them equal, some null."""
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
    for row in (*order, *order[:50]):  # some rows again, from the index
        got = column[row]
        assert (None if got is None else bytes(got)) == expected[row], row
    assert len(column) == len(expected)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_values_match_pyarrow(compression: str, dictionary: bool, version: str, tmp_path: Path) -> None:
    how: dict[str, Any] = dict(compression=compression, use_dictionary=dictionary, data_page_version=version)
    how |= dict(data_page_size=4096, row_group_size=120, write_batch_size=10, dictionary_pagesize_limit=8192)
    assert_equal(tmp_path / "a.parquet", write(tmp_path / "a.parquet", values(empty=0.1), **how))


@pytest.mark.parametrize("struct", [True, False])
@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("empty", [0.0, 0.3, 1.0])
def test_null_rows(struct: bool, nullable: bool, empty: float, tmp_path: Path) -> None:
    rows = values(100, empty if nullable else 0.0)
    for version in ("1.0", "2.0"):
        how: dict[str, Any] = dict(data_page_version=version, use_dictionary=False, compression="snappy")
        assert_equal(tmp_path / "a.parquet", write(tmp_path / "a.parquet", rows, struct, nullable, **how))


def test_hugging_face_shards_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither compressed nor encoded: a value is read from the file by itself."""
    name = write(tmp_path / "a.parquet", values(), compression="none", use_dictionary=False)
    column = BinaryColumn(tmp_path / "a.parquet", name)
    column[0]
    read: list[int] = []
    monkeypatch.setattr(_opened(column.file), "read", lambda _at, count: read.append(count) or bytes(count))
    value = column[0]
    assert value is not None
    assert read == [len(value)]


def test_unsupported_encodings_are_reported_and_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_unpack_option(tmp_path: Path) -> None:
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
        with pytest.raises(OSError, match="the row has no image"):
            source.read(0)


def test_reading_in_place_writes_nothing_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "home"))
    root = make_snapshot(tmp_path / "data", {"train": list(range(40))}, shards=3)
    source = Parquet(root, "train", tmp_path / "cache")
    assert [source.read(i).convert("RGB").getpixel((3, 3)) for i in (39, 0, 13)] == [pixel(jpeg(c)) for c in (39, 0, 13)]
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_corrupt_bytes_raise_oserror_only(compression: str, dictionary: bool, tmp_path: Path) -> None:
    """With any byte corrupt, a value is read or OSError is raised: never another exception, never a read past the file."""
    whole_file, rng = tmp_path / "a.parquet", random.Random(0)
    how: dict[str, Any] = dict(compression=compression, use_dictionary=dictionary, data_page_size=2048, write_batch_size=10)
    name = write(whole_file, values(60), **how)
    whole = whole_file.read_bytes()
    body = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")  # without the footer the file is not opened
    first = pq.read_metadata(whole_file).row_group(0).column(0)
    header = first.dictionary_page_offset if dictionary else first.data_page_offset
    places = [*(header + k for k in range(24) for _ in range(4)), *(rng.randrange(4, body) for _ in range(60))]
    refused: list[OSError] = []
    for trial, place in enumerate(places):
        spoilt = bytearray(whole)
        spoilt[place] = rng.randrange(256)
        path = tmp_path / f"{trial}.parquet"
        path.write_bytes(spoilt)
        column = BinaryColumn(path, name)
        for row in range(0, len(column), 7):
            try:
                column[row]
            except OSError as error:
                refused.append(error)
    _opened.cache_clear()
    assert len(refused) > 30
    assert {error.errno for error in refused} == {None}  # none of the operating system


def test_replaced_file_is_read_again(tmp_path: Path) -> None:
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for file, rows in ((path, [b"old"] * 5), (other, [b"new"] * 9)):
        name = write(file, rows, struct=False)
    assert bytes(BinaryColumn(path, name)[4] or b"") == b"old"
    other.replace(path)
    assert bytes(BinaryColumn(path, name)[4] or b"") == b"new"


def test_dictionary_with_more_entries_than_rows(tmp_path: Path) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([3, 19, 0, 7, 7, 11, 2]), pa.array([bytes([i]) * 30 for i in range(20)]))
    pq.write_table(pa.table({"image": words}), tmp_path / "a.parquet", row_group_size=5)
    assert_equal(tmp_path / "a.parquet", "image")


def test_few_decompressed_pages_are_cached(tmp_path: Path) -> None:
    columns = []
    for k in range(6):
        name = write(tmp_path / f"{k}.parquet", values(40, seed=k), compression="snappy")
        columns.append(BinaryColumn(tmp_path / f"{k}.parquet", name))
    for column in columns:
        column[0]
    assert _unpack.cache_info().currsize <= 2


def test_undecodable_file_names_are_omitted(tmp_path: Path) -> None:
    root = make_snapshot(tmp_path, {"train": [0, 1]}, shards=1, classes=2)
    (shard,) = root.iterdir()
    table = pq.read_table(shard)
    field = table.schema.field("image")
    cells = [{"bytes": jpeg(1), "path": "twelve bytes"}, {"bytes": jpeg(2), "path": None}]
    table = table.set_column(0, field, pa.array(cells, field.type))
    pq.write_table(table, shard, compression="none", use_dictionary=False, write_statistics=False)
    assert Parquet(root, "train").name(0) == f"{shard.name} row 0 (twelve bytes)"
    shard.write_bytes(shard.read_bytes().replace(b"twelve bytes", b"\xff" * 12))
    _paths.cache_clear()
    assert Parquet(root, "train").name(0) == f"{shard.name} row 0"


def corrupt(shard: Path, group: int, columns: tuple[int, ...]) -> None:
    """Corrupt the header of the first page of some columns of a row group."""
    data = bytearray(shard.read_bytes())
    for column in columns:
        data[pq.read_metadata(shard).row_group(group).column(column).data_page_offset] = 255
    shard.write_bytes(data)


@pytest.mark.parametrize("workers", [0, 1])
def test_corrupt_pages_are_broken_images(workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A corrupt page of a hundred rows, reported with file names; training continues with the other rows."""
    root = make_snapshot(tmp_path / "data", {"train": [0, 1] * 150, "validation": [0, 1] * 4}, shards=1, classes=2)
    shard = root / "train-00000-of-00001.parquet"
    pq.write_table(pq.read_table(shard), shard, row_group_size=100, compression="none", use_dictionary=False)
    corrupt(shard, 0, (0, 1))
    recipe = folder_recipe(tmp_path, root, source="parquet", workers=workers)
    command = [*recipe, "--optim.batch-size", "50", "--optim.epochs", "1"]
    assert tailprop_cli.main(command) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert "train-00000-of-00001.parquet row" in err
    assert "a page header is corrupt" in err
    assert tailprop_cli.main([*command, "--data.on-broken", "skip", "--run.overwrite"]) == 0
    assert "broken images skipped" in capsys.readouterr().out


def test_pages_before_a_corrupt_page_are_read(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.parquet", [bytes([i]) * 500 for i in range(40)]
    how: dict[str, Any] = dict(compression="none", use_dictionary=False, data_page_size=2000, write_batch_size=4)
    name = write(path, rows, struct=False, **how)
    whole = BinaryColumn(path, name)
    second, third = whole._index(whole.chunks[0])[1][1:3]
    data = bytearray(path.read_bytes())
    data[second.offset + second.size : third.offset] = b"\xff" * (third.offset - second.offset - second.size)
    spoilt = tmp_path / "b.parquet"
    spoilt.write_bytes(data)
    column = BinaryColumn(spoilt, name)
    assert bytes(column[3] or b"") == rows[3]
    with pytest.raises(OSError, match=r"b.parquet ends before its row 39"):
        column[39]


def test_corrupt_footer_is_refused_by_name_and_ends_no_process(tmp_path: Path) -> None:
    """pyarrow aborts the process that reads some corrupt footers: the shard is refused before this one reads it."""
    root = make_snapshot(tmp_path / "data", {"train": [0, 1, 2, 1]}, shards=2, classes=3)
    shard = root / "train-00001-of-00002.parquet"
    whole = shard.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    shard.write_bytes(whole[: footer + 18] + b"\x12" + whole[footer + 19 :])  # how often a column is repeated: no such value
    code = f"from tailprop.data.formats.parquet_guard import _read; _read({str(shard)!r}, ['image'], ['label'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode < 0
    with pytest.raises(ValueError, match=r"train-00001-of-00002\.parquet is corrupt \(reading it ends the process\)"):
        check_shards([root / "train-00000-of-00002.parquet", shard], ["image"], ["label"])
    with pytest.raises(ValueError, match=r"train-00001-of-00002\.parquet is corrupt"):
        Parquet(root, "train")


@pytest.mark.parametrize("byte", [b"\x88", b"\xff", b"x"])
@pytest.mark.parametrize("name", [b"label", b"image"])
def test_changed_names_in_a_footer_are_refused_by_name(name: bytes, byte: bytes, tmp_path: Path) -> None:
    """A name that is not text, or of a column that is looked for: pyarrow's message has no file in it."""
    root = make_snapshot(tmp_path / "data", {"train": [0, 1, 2, 1]}, shards=2, classes=3)
    shard = root / "train-00001-of-00002.parquet"
    whole = shard.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    places = [found.start() for found in re.finditer(name, whole) if found.start() > footer]
    errors = []
    for place in places:
        shard.write_bytes(whole[: place + 3] + byte + whole[place + 4 :])
        try:
            Parquet(root, "train")
        except ValueError as error:
            errors.append(str(error))
    assert errors
    assert all(shard.name in error and "\n" not in error for error in errors)


def test_shard_that_is_no_file(tmp_path: Path) -> None:
    """Opening a pipe would wait for someone to write into it."""
    make_snapshot(tmp_path, {"train": [0, 1, 2, 1]}, shards=1, classes=3)
    pipe, link, folder = (tmp_path / f"train-0000{number}-of-00001.parquet" for number in (1, 2, 3))
    for shard, make in ((pipe, os.mkfifo), (link, lambda path: path.symlink_to("nowhere")), (folder, Path.mkdir)):
        make(shard)
        signal.alarm(60)  # a hang ends the tests
        with pytest.raises(ValueError, match=rf"{shard.name} is not a file, or a link that leads nowhere"):
            Parquet(tmp_path, "train")
        signal.alarm(0)
        folder.rmdir() if shard == folder else shard.unlink()


def test_shard_that_is_truncated_while_it_is_open(tmp_path: Path) -> None:
    """A mapped file would end the process with SIGBUS."""
    name = write(tmp_path / "a.parquet", values(), compression="none", use_dictionary=False)
    code = f"""
import os
from pathlib import Path
from tailprop.data.formats.parquet_guard import check_shards
from tailprop.data.formats.parquet_pages import BinaryColumn
column = BinaryColumn(Path({str(tmp_path / "a.parquet")!r}), {name!r})
column[0]
os.truncate({str(tmp_path / "a.parquet")!r}, 0)
try:
    column[1]
except OSError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "a.parquet was truncated while it was read\n"


@pytest.mark.parametrize(
    "metadata",
    [
        "null",
        '{"info": 5}',
        '{"info": {"features": [1]}}',
        '{"info": {"features": {"label": 3}}}',
        "[" * 100_000,
        "\udcff",
        "{",
    ],
)
def test_metadata_of_the_wrong_type(metadata: str, tmp_path: Path) -> None:
    shard = tmp_path / "train-00000-of-00001.parquet"
    encoded = metadata.encode("utf-8", "surrogateescape")
    table = pa.table({"image": [jpeg(1), jpeg(2)], "label": [0, 1]}).replace_schema_metadata({b"huggingface": encoded})
    pq.write_table(table, shard)
    with pytest.raises(ValueError, match=r"train-00000-of-00001\.parquet") as caught:
        Parquet(tmp_path, "train")
    assert "\n" not in str(caught.value)


def test_class_names_of_the_wrong_type(tmp_path: Path) -> None:
    for names in (None, 5, [], [1, 2], ["a", None]):
        feature = {"label": {"_type": "ClassLabel", "names": names}}
        metadata = {b"huggingface": json.dumps({"info": {"features": feature}}).encode()}
        table = pa.table({"image": [jpeg(1), jpeg(2)], "label": [0, 1]}).replace_schema_metadata(metadata)
        pq.write_table(table, tmp_path / "train-00000-of-00001.parquet")
        with pytest.raises(ValueError, match=r"00001\.parquet: its metadata has no list of class names for"):
            Parquet(tmp_path, "train")


def test_invalid_labels(tmp_path: Path) -> None:
    shard = tmp_path / "train-00000-of-00001.parquet"
    pq.write_table(pa.table({"image": [jpeg(1), jpeg(2)], "label": [0, 2**31 - 1]}), shard)
    with pytest.raises(ValueError, match=r"label 2147483647 of train-00000-of-00001.parquet row 1 is not a valid class index"):
        Parquet(tmp_path, "train")
    pq.write_table(pa.table({"image": [jpeg(1), jpeg(2)], "label": [0, 1]}), shard, use_dictionary=False)
    corrupt(shard, 0, (1,))
    with pytest.raises(ValueError, match=r"train-00000-of-00001.parquet is corrupt .*; download it again"):
        Parquet(tmp_path, "train")
    pq.write_table(pa.table({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}), shard)
    with pytest.raises(ValueError, match="its shards are empty"):
        Parquet(tmp_path, "train")


def test_large_compressed_pages_are_reported_by_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [jpeg(1) + random.Random(i).randbytes(600_000) for i in range(10)]
    for compression, rank, said in (("none", "0", ""), ("snappy", "0", "--data.unpack"), ("snappy", "1", "")):
        root = tmp_path / f"{compression}{rank}"
        root.mkdir()
        table = pa.table({"image": images, "label": [0] * 10})
        pq.write_table(table, root / "train-00000-of-00001.parquet", compression=compression)  # all of it in a dictionary
        monkeypatch.setenv("RANK", rank)
        assert Parquet(root, "train").read(7).size == (40, 36)
        err = capsys.readouterr().err
        assert said in err
        assert bool(said) == bool(err)


def test_inconsistent_shards(tmp_path: Path) -> None:
    root = make_snapshot(tmp_path / "data", {"train": [0, 1, 0, 1]}, classes=2)
    second = root / "train-00001-of-00002.parquet"
    pq.write_table(pa.table({"image": [jpeg(1), jpeg(2)], "label": [0, 1]}), second)
    with pytest.raises(ValueError, match=r"train-00001-of-00002.parquet stores images in another type"):
        Parquet(root, "train")
    pq.write_table(pa.table({"image": [jpeg(1)], "name": ["cat"]}), second)
    with pytest.raises(ValueError, match=r"00001-of-00002.parquet needs the columns image and label, but has image, name"):
        Parquet(root, "train")


def test_text_labels_raise(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [jpeg(1)], "label": ["cat"]}), tmp_path / "train-00000-of-00001.parquet")
    with pytest.raises(ValueError, match="labels must be integers from 0 on, but column label has type string; convert it"):
        Parquet(tmp_path, "train")


def pixel(encoded: bytes) -> Any:
    return Image.open(io.BytesIO(encoded)).convert("RGB").getpixel((3, 3))


def test_sizes_in_a_page_header_are_within_its_column() -> None:
    """Memory is allocated by them, and a damaged footer may allow a column any size."""
    page = Page(kind=0, rows=3, encoding=0, offset=0, size=10, unpacked_size=12, levels=None, is_packed=True)
    chunk = Chunk(rows=3, offset=0, end=100, unpacked_size=2**60, codec=None)
    assert _fits(page, chunk)
    for wrong in (dict(unpacked_size=2**31), dict(size=-1), dict(levels=-1), dict(levels=13), dict(rows=4), dict(rows=-1)):
        assert not _fits(page._replace(**wrong), chunk)
    assert not _fits(page, chunk._replace(unpacked_size=11))
