"""Text from outside, before it reaches a terminal."""

import ast
from pathlib import Path

import pytest

from tailprop.utils.terminal import Console, Table
from tailprop.utils.text import excerpt, printable, say
from tests.helpers import ROOT

SOURCE = ROOT / "src" / "tailprop"
PRINTERS = {"utils/text.py", "utils/terminal.py"}  # what they print is escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain name 7.png", "plain name 7.png"),
        ("Straße, 猫", "Straße, 猫"),
        ("\u0645\u06cc\u200c\u062e\u0648", "\u0645\u06cc\u200c\u062e\u0648"),  # a joiner inside a Persian word
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b2J", "\\x9b2J"),  # the same in one character
        ("a\r\nb\u2028c", "a\\r\\nb\\u2028c"),
        ("\u202egnp.exe", "\\u202egnp.exe"),  # right to left
        ("\u2066a\u2069\u200b\ufeff", "\\u2066a\\u2069\\u200b\\ufeff"),
        ("caf\udce9", "caf\\udce9"),  # an undecodable byte
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown  # escaping twice changes nothing


def test_lines_and_tables_are_escaped_and_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\x1b[2J\nb")
    say("c\u202e", error=True)
    table = Table("name")
    table.add_row("d\x1b[2J [bold]e[/]")
    console = Console(width=60)
    console.print(table)
    console.print("f\u202e [red]g[/]")
    out, err = capsys.readouterr()
    assert out.startswith("a\\x1b[2J\\nb\n")
    assert err == "c\\u202e\n"
    assert "d\\x1b[2J [bold]e[/]" in out
    assert "f\\u202e [red]g[/]" in out


def test_excerpts_are_short_and_escaped() -> None:
    assert excerpt("x" * 100) == f"'{'x' * 36}..."
    assert excerpt(Path("a\x1b[2J")) == r"a\x1b[2J"
    assert excerpt(["\x1b"]) == r"['\x1b']"


def prints(path: Path) -> list[str]:
    """Calls and imports of a module that would print without escaping."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "Text"):
            argument = node.args[0] if node.args else None
            is_safe = argument is None or isinstance(argument, ast.Constant) or node.func.id == "Text"
            found += [] if is_safe and node.func.id == "print" else [f"{path}:{node.lineno} {node.func.id}"]
        if isinstance(node, ast.ImportFrom) and node.module in ("rich.console", "rich.table"):
            found += [f"{path}:{node.lineno} {name.name} of rich" for name in node.names if name.name in ("Console", "Table")]
    return found


def test_everything_is_printed_by_the_functions_that_escape() -> None:
    """`print` and rich's own console and table would pass on what a file name or a class name contains."""
    allowed = {"engine/launch.py": ["Text", "Text"]}  # styled text, of numbers and an escaped summary
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if name not in PRINTERS and name != "data/formats/parquet_guard.py":
            assert [line.split()[-1] for line in prints(path)] == allowed.get(name, []), prints(path)
