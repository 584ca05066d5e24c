"""rich's console and table for text from outside: strings are escaped, and are no markup."""

from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table as RichTable
from rich.text import Text

from tailprop.utils.text import printable

__all__ = ["Console", "Table", "safe"]


def safe(value: Any) -> Any:
    """A string as escaped text; another renderable as it is."""
    return Text(printable(value)) if isinstance(value, str) else value


class Console(RichConsole):
    """A console that prints strings escaped; styled text is given as `rich.text.Text`."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*map(safe, objects), **how)


class Table(RichTable):
    """A table whose cells are escaped."""

    def add_row(self, *cells: Any, **how: Any) -> None:
        super().add_row(*map(safe, cells), **how)
