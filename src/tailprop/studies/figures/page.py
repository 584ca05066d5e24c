"""The HTML index of a set of figures."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tailprop.runtime.provenance import provenance
from tailprop.studies.figures.inputs import Picture
from tailprop.studies.figures.network import Network
from tailprop.utils.files import make_folder, write_atomically

__all__ = ["write_page"]

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222;
  background: #fff; overflow-wrap: anywhere; }
figure { margin: 0 0 2rem; } nav a { margin-right: 1rem; white-space: nowrap; }
img { max-width: 100%; height: auto; border: 1px solid #ddd; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; }
figcaption { color: #444; } code { background: #f3f3f3; padding: .1rem .3rem; } footer { color: #666; font-size: .85rem; }
"""


def write_page(
    path: Path, pictures: Sequence[Picture], networks: Sequence[Network], notes: Sequence[str], command: str
) -> None:
    """One page with every figure, its caption, its files, and what it was made from."""
    body = [
        "<h1>Figures of tail propagation</h1>",
        f"<p>Drawn by <code>{html.escape(command)}</code></p>",
        _table(networks),
        *(f"<p>{html.escape(note)}</p>" for note in notes),
        f"<nav>{' '.join(_link(picture) for picture in pictures)}</nav>",
        *(_section(picture) for picture in pictures),
        f"<footer>{html.escape(', '.join(f'{key} {value}' for key, value in provenance().items()))}</footer>",
    ]
    about = '<meta charset=utf-8><meta name=viewport content="width=device-width"><title>Figures of tail propagation</title>'
    page = f"<!doctype html>\n<html lang=en>{about}<style>{_STYLE}</style>\n" + "\n".join(body)
    make_folder(path.parent)
    write_atomically(path, lambda part: part.write_text(page + "\n</html>\n", encoding="utf-8", errors="backslashreplace"))


def _table(networks: Sequence[Network]) -> str:
    rows = [(n.path, n.model, n.mixer, n.data, n.score or "unknown") for n in networks]
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    head = "".join(f"<th>{name}</th>" for name in ("checkpoint", "model", "mixer", "data", "best epoch"))
    return f"<table><tr>{head}</tr>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _link(picture: Picture) -> str:
    return f'<a href="#{html.escape(picture.name)}">{html.escape(picture.title)}</a>'


def _section(picture: Picture) -> str:
    name, kinds = html.escape(picture.name), ["pdf", "csv", *(["gif"] if picture.frames else [])]
    links = " ".join(f'<a href="{name}.{kind}">{kind.upper()}</a>' for kind in kinds)
    animation = f'<img src="{name}.gif" alt="animation">' if picture.frames else ""
    return (
        f'<h2 id="{name}">{html.escape(picture.title)}</h2><figure><a href="{name}.png"><img src="{name}.png" '
        f'alt="{html.escape(picture.title)}"></a>{animation}'
        f"<figcaption>{html.escape(picture.note)} {links}</figcaption></figure>"
    )
