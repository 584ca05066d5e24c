"""The models that come with the package, by name: a folder each in `tailprop/models`.

A folder has `model.safetensors`, whose metadata holds the settings, stored in half precision; `README.md`, the card; and
`model.json`, the line of `tailprop models`.
"""

from pathlib import Path
from typing import Final

from tailprop.utils.text import closest

__all__ = ["SHIPPED_FOLDER", "check_checkpoint_name", "locate", "shipped_names", "unknown_checkpoint"]

SHIPPED_FOLDER: Final = Path(__file__).parents[1] / "models"
_WEIGHTS: Final = "model.safetensors"
_SIMILAR: Final = 0.7  # of a typing error; the names of timm's models are less similar than that


def shipped_names() -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in SHIPPED_FOLDER.glob(f"*/{_WEIGHTS}")))


def locate(where: str | Path) -> Path:
    """The path of a run folder or a weights file, or the folder of a shipped model; what exists under that name comes first."""
    path = Path(where)
    if path.exists() or str(where) not in shipped_names():
        return path
    return SHIPPED_FOLDER / path


def check_checkpoint_name(where: str) -> None:
    """Raise if nothing has that name, and a shipped model has a similar one; other names may be those of timm's models."""
    if not locate(where).exists() and closest(where, shipped_names(), cutoff=_SIMILAR):
        raise ValueError(unknown_checkpoint(where))


def unknown_checkpoint(where: str | Path) -> str:
    """The error message for a name that is neither a file nor a shipped model."""
    names = shipped_names()
    if Path(where).suffix or Path(where).name != str(where) or not names:
        return f"no checkpoint at {where}"
    close = closest(str(where), names, cutoff=_SIMILAR)
    hint = f"did you mean {close[0]}?" if close else f"shipped models are {', '.join(names)}"
    return f"no checkpoint at {where}; {hint}"
