"""Recipes: YAML files of settings, by name or by path."""

from pathlib import Path
from typing import Any

from tailprop.utils.parsing import parse_yaml, sealed_text
from tailprop.utils.text import did_you_mean

__all__ = ["RECIPE_FOLDERS", "find_recipe", "read_recipe", "recipe_names"]

_PACKAGE = Path(__file__).parents[1]
# of the working directory, of a checkout, of the wheel
RECIPE_FOLDERS = (
    Path("recipes"),
    _PACKAGE.parents[1] / "recipes",
    _PACKAGE / "recipes",
)


def find_recipe(name: str) -> Path:
    """The YAML file of a recipe, given by name or path, or of a run, given by its folder."""
    if Path(name).suffix in (".yaml", ".yml"):
        if not Path(name).is_file():
            raise ValueError(f"no recipe file {name}")
        return Path(name)
    for folder in RECIPE_FOLDERS:
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    if (run := Path(name) / "config.yaml").is_file():
        return run
    if Path(name).is_dir():
        raise ValueError(
            f"the folder {name} has no config.yaml, so it is not a run folder; name a recipe, with --run.out {name}"
        )
    raise ValueError(f"no recipe {name!r}; {did_you_mean(name, recipe_names())}")


def recipe_names() -> list[str]:
    return sorted({path.stem for folder in RECIPE_FOLDERS if folder.is_dir() for path in folder.glob("*.yaml")})


def read_recipe(path: Path) -> dict[str, Any]:
    """The settings in a YAML file."""
    values = parse_yaml(sealed_text(path), path)
    if values is None:
        raise ValueError(f"{path} is empty; a recipe has settings by name")
    if not isinstance(values, dict):
        raise ValueError(f"{path} must be a mapping of settings, got {type(values).__name__}")
    return values
