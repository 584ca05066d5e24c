"""Files from outside: whatever is wrong with one is a ValueError of one line with its name."""

import contextlib
import json
import os
from pathlib import Path

import pytest

from tailprop.utils.parsing import parse_json, parse_yaml, read_bytes, read_text, seal_row, seal_text, sealed_row, sealed_text

BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{chr(98 + k)}: &{chr(98 + k)} [{', '.join([f'*{chr(97 + k)}'] * 10)}]\n" for k in range(8)
)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 2000,
        "a: [1",
        "!!python/object/apply:os.system [ls]",
        "!!timestamp abc",
        "!!bool 7",
        "!!int ''",
        "2020-99-99",
        "\0",
    ],
)
def test_invalid_yaml_names_the_file(text: str) -> None:
    with pytest.raises(ValueError, match=r"^recipe\.yaml is not YAML: .") as caught:
        parse_yaml(text, "recipe.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [BOMB, "a: &a [*a]", "a: &a {b: *a}"])
def test_aliases_that_expand_to_millions_of_values_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^recipe\.yaml is not usable: its aliases"):
        parse_yaml(text, "recipe.yaml")


def test_aliases_of_usual_size_are_read() -> None:
    assert parse_yaml("a: &a [1, 2]\nb: *a", "x") == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize("text", ["[" * 100_000, "{", b"\xff\xfe", "1" * 5000])
def test_invalid_json_names_the_file(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"^a\.json is not valid json") as caught:
        parse_json(text, "a.json")
    assert "\n" not in str(caught.value)


def test_sealed_text_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    text = seal_text("lr: 0.5\n")
    path.write_text(text)
    assert parse_yaml(sealed_text(path), path) == {"lr": 0.5}
    path.write_text(text.replace("0.5", "0.7"))
    with pytest.raises(ValueError, match=r"config\.yaml does not match the checksum in its last line"):
        sealed_text(path)
    path.write_text("lr: 0.7\n")  # without that line, as the message says
    assert sealed_text(path) == "lr: 0.7\n"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a text file"):
        read_text(path)


def test_sealed_rows_are_verified() -> None:
    row = {"kind": "step", "loss": 0.25, "name": 'a", "crc32": "00000000"}', "step": 7}
    line = seal_row(row).encode()
    assert json.loads(line).keys() == {*row, "crc32"}
    assert sealed_row(line, "x") == row
    assert sealed_row(json.dumps(row | {"name": "b"}).encode(), "x") == row | {"name": "b"}  # of an earlier version
    for place in range(8 * len(line)):
        changed = bytearray(line)
        changed[place // 8] ^= 1 << place % 8
        with contextlib.suppress(ValueError):  # or the bit is one of the checksum's name
            assert {name: sealed_row(bytes(changed), "x").get(name) for name in row} == row
    with pytest.raises(ValueError, match=r"^x\.jsonl is corrupt: its checksum does not match$"):
        sealed_row(line.replace(b"0.25", b"0.35"), "x.jsonl")


def test_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    """Reading a pipe would wait for someone to write into it."""
    os.mkfifo(tmp_path / "pipe")
    for read in (read_bytes, read_text, sealed_text):
        with pytest.raises(ValueError, match=r"pipe is not a file but a pipe, a socket or a device"):
            read(tmp_path / "pipe")
        with pytest.raises(ValueError, match=r"is not a file but a folder"):
            read(tmp_path)
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "nothing")
