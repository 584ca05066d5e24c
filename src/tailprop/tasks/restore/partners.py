"""Degraded images that belong to clean ones: the same path in another folder."""

from collections.abc import Sequence
from pathlib import Path

from tailprop.data.images import list_images

__all__ = ["find_partners"]


def find_partners(clean: Sequence[Path], folders: dict[Path, Path], scale: int) -> dict[Path, Path]:
    """The degraded image of each clean one, by its path below its folder without the suffix.

    Smaller images may have the scale in their names, as in DIV2K: 0001.png and 0001x2.png.

    Args:
        clean: Images in the folders.
        folders: The folder of degraded images for each folder of clean ones.
        scale: How many times larger the clean images are.
    """
    known = {folder: _by_name(degraded, scale) for folder, degraded in folders.items()}
    found = {}
    for path in clean:
        folder = next(folder for folder in folders if path.is_relative_to(folder))
        name = path.relative_to(folder).with_suffix("")
        if name not in known[folder]:
            raise ValueError(f"{path} has no degraded image {name} in {folders[folder]}")
        found[path] = known[folder][name]
    return found


def _by_name(folder: Path, scale: int) -> dict[Path, Path]:
    if not folder.is_dir():
        raise ValueError(f"no folder {folder} of degraded images")
    found: dict[Path, Path] = {}
    for path in list_images([str(folder)]):
        name = path.relative_to(folder).with_suffix("")
        name = name.with_name(name.name.removesuffix(f"x{scale}") or name.name)
        if name in found:
            raise ValueError(f"{path} and {found[name]} have the same name; keep one of them")
        found[name] = path
    return found
