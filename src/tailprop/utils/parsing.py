"""Parsing of files from outside: whatever is wrong with one becomes a ValueError of one line that names it."""

import hashlib
import json
import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn
from xml.parsers import expat

import yaml

__all__ = [
    "Node",
    "parse_json",
    "parse_xml",
    "parse_yaml",
    "read_bytes",
    "read_text",
    "seal_row",
    "seal_text",
    "sealed_row",
    "sealed_text",
]

_MOST_VALUES: Final = 1_000_000  # of a YAML file after its aliases are expanded
_DEEPEST: Final = 64  # nested elements of an XML file
_SEAL: Final = "# sha256 "  # starts the last line of a sealed text
_ROW_SEAL: Final = ', "crc32": "'  # starts the last entry of a sealed line of json


def read_bytes(path: Path) -> bytes:
    """The content of a regular file: reading a pipe would wait for someone to write into it."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file but {'a folder' if path.is_dir() else 'a pipe, a socket or a device'}")
    return path.read_bytes()


def read_text(path: Path) -> str:
    """The text of a file in UTF-8."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8, or is corrupt") from None


def parse_json(text: str | bytes, where: object) -> Any:
    """The value of a JSON text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{where} is not valid json (it is nested too deeply)") from None
    except ValueError as error:
        raise ValueError(f"{where} is not valid json ({error}); it may be truncated or corrupt") from None


def parse_yaml(text: str, where: object) -> Any:
    """The value of a YAML text, without tags that execute code, and without aliases that expand to millions of values."""
    try:
        value = yaml.safe_load(text)
    except MemoryError:
        raise
    except RecursionError:
        raise ValueError(f"{where} is not YAML: it is nested too deeply") from None
    except Exception as error:  # besides YAMLError, its constructors raise AttributeError, KeyError, IndexError and others
        reason = " ".join(str(error).split()) if isinstance(error, yaml.YAMLError) else f"a value has a wrong format: {error}"
        raise ValueError(f"{where} is not YAML: {reason}") from None
    if _expanded_size(value, {}) > _MOST_VALUES:
        raise ValueError(f"{where} is not usable: its aliases (*name) repeat themselves, or expand to too many values")
    return value


def _expanded_size(value: Any, known: dict[int, float]) -> float:
    """Number of values with every alias expanded; infinite if one contains itself. `known` has the sizes by id."""
    if not isinstance(value, list | dict | set | tuple):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf  # while its items are counted
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        known[id(value)] = 1 + sum(_expanded_size(item, known) for item in items)
    return known[id(value)]


@dataclass
class Node:
    """An element of an XML file, with the line it starts on."""

    tag: str
    line: int
    text: str = ""
    children: list["Node"] = field(default_factory=list)

    def find(self, tag: str) -> "Node | None":
        """The first child with this tag."""
        return next((child for child in self.children if child.tag == tag), None)

    def find_all(self, tag: str) -> "list[Node]":
        return [child for child in self.children if child.tag == tag]


def parse_xml(text: bytes, where: object) -> Node:
    """The root of an XML file, without entities, which can expand to gigabytes or name other files."""
    root = Node("", 0)
    path, parser = [root], expat.ParserCreate()

    def start(tag: str, _attributes: object) -> None:
        if len(path) > _DEEPEST:
            raise ValueError(f"{where} is not usable: it is nested too deeply in line {parser.CurrentLineNumber}")
        path[-1].children.append(node := Node(tag, parser.CurrentLineNumber))
        path.append(node)

    def end(_tag: str) -> None:
        path.pop()

    def add_text(text: str) -> None:
        path[-1].text += text

    def refuse_entity(*_declared: object) -> NoReturn:
        raise ValueError(f"{where} is not usable: line {parser.CurrentLineNumber} defines an entity; write the text itself")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.EntityDeclHandler = add_text, refuse_entity
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, LookupError) as error:  # LookupError: an encoding that Python does not know
        raise ValueError(f"{where} is not XML ({error}); it may be truncated or corrupt") from None
    return root.children[0]


def seal_text(text: str) -> str:
    """The text with its checksum as a comment in the last line."""
    return f"{text}{_SEAL}{hashlib.sha256(text.encode()).hexdigest()} of the lines above; delete this line to edit them\n"


def sealed_text(path: Path) -> str:
    """The text of a file; raises if it has a checksum that does not match."""
    text = read_text(path)
    body, mark, seal = text.rpartition(_SEAL)
    if mark and hashlib.sha256(body.encode()).hexdigest() != seal[:64]:
        raise ValueError(
            f"{path} does not match the checksum in its last line: it is corrupt, or was edited; if you edited it, delete that "
            "line"
        )
    return text


def seal_row(row: dict[str, Any]) -> str:
    """A mapping that is not empty as a line of json, with its checksum as the last entry."""
    text = json.dumps(row)
    return f'{text[:-1]}{_ROW_SEAL}{zlib.crc32(text.encode()):08x}"}}'


def sealed_row(line: bytes, where: object) -> Any:
    """The value of a line of json; raises if it has a checksum that does not match."""
    body, mark, seal = line.rpartition(_ROW_SEAL.encode())
    if mark and f'{zlib.crc32(body + b"}"):08x}"}}'.encode() != seal:
        raise ValueError(f"{where} is corrupt: its checksum does not match")
    return parse_json(body + b"}" if mark else line, where)
