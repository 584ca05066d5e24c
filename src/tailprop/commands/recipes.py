"""`tailprop recipes [NAME]`: list the recipes, or explain one."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tailprop.engine.recipes import RECIPE_FOLDERS, find_recipe, read_recipe, recipe_names
from tailprop.tasks import DEFAULT_TASK, find_spec
from tailprop.utils.parsing import read_text
from tailprop.utils.text import say, say_lines

__all__ = ["Recipes", "explain_recipe", "run"]


@dataclass(frozen=True)
class Recipes:
    """List the recipes, or explain one of them."""

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="NAME")] = None
    """A recipe, by name or file; none = list them all."""


def run(options: Recipes) -> None:
    if options.name is not None:
        explain_recipe(find_recipe(options.name))
        return
    rows: dict[str, list[tuple[str, str]]] = {}
    for name in recipe_names():
        path = find_recipe(name)
        rows.setdefault(str(read_recipe(path).get("task", DEFAULT_TASK)), []).append((name, _first_sentence(path)))
    width = max(len(name) for names in rows.values() for name, _ in names)
    for task, names in rows.items():
        say(f"{find_spec(task).title} ({task})")
        for name, about in names:
            say(f"  {name:<{width}}  {about}")
        say("")
    if studies := _studies():
        say("studies, for tailprop ablate")
        for name, path in studies.items():
            say(f"  {name:<{width}}  {_first_sentence(path)}")
        say("")
    say("tailprop recipes NAME explains one; tailprop train NAME --help lists its settings.")


def explain_recipe(path: Path) -> None:
    """Print what a recipe is for, the commands that use it, and its settings."""
    about, commands, settings = _parts(path)
    task = find_spec(str(read_recipe(path).get("task", DEFAULT_TASK)))
    say(f"{path}: {task.title}")
    say("")
    say_lines("\n".join(about))
    if commands:
        say("")
        say_lines("\n".join(f"  {command}" for command in commands))
    say("")
    say_lines("\n".join(settings))


def _studies() -> dict[str, Path]:
    folders = [folder / "studies" for folder in reversed(RECIPE_FOLDERS)]
    return {path.stem: path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.yaml"))}


def _parts(path: Path) -> tuple[list[str], list[str], list[str]]:
    """The lines of the comment at the top, the commands in it, and the settings."""
    about: list[str] = []
    commands: list[str] = []
    settings: list[str] = []
    for line in read_text(path).splitlines():
        comment = line[1:] if line.startswith("#") and not settings else None
        if comment is None:
            settings.append(line)
        elif comment.startswith("   "):
            commands.append(comment.strip())
        else:
            about.append(comment.strip())
    return about, commands, settings


def _first_sentence(path: Path) -> str:
    text = " ".join(_parts(path)[0])
    return re.split(r"(?<=\w)[.:;](?=\s|$)", text)[0] or "(it has no comment)"
