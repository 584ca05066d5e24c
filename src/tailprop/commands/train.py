"""`tailprop train RECIPE`: train by a recipe, every setting open to the command line."""

import dataclasses
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from tailprop.engine.config import build, to_dict
from tailprop.engine.options import parse_options
from tailprop.engine.recipes import find_recipe, read_recipe, recipe_names
from tailprop.engine.run_folder import RunFolder
from tailprop.engine.trainer import Trainer
from tailprop.runtime.distributed import World, any_true, launch_name, together
from tailprop.runtime.signals import Interrupted
from tailprop.tasks import find_task


def parse(args: list[str]) -> Any:
    """The recipe named first, changed by the options after it."""
    if not args or args[0].startswith("-"):
        print("usage: tailprop train RECIPE [--section.setting value ...]\n\nRECIPE is a YAML file, a run folder or one of:")
        print("\n".join(f"  {name}" for name in recipe_names()))
        print("\ntailprop train RECIPE --help lists every setting with its value.")
        sys.exit(0 if args and args[0] in ("-h", "--help") else 2)
    path = find_recipe(args[0])
    values = read_recipe(path)
    try:
        config, _ = find_task(values.get("task", "classify"))
        default = build(config, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if path.parent == Path(args[0]):  # a run, wherever it was moved to
        default = _in_folder(default, path.parent)
    elif default.run.out == type(default.run)().out:  # every recipe has a folder of its own
        default = _in_folder(default, default.run.out.with_name(path.stem))
    chosen = parse_options(config, args[1:], f"tailprop train {args[0]}", default=default)
    chosen.check()
    return chosen


def _in_folder(config: Any, out: Path) -> Any:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, out=out))


def run(config: Any) -> None:
    with together(config.run.device, config.run.threads) as world:
        if any_true(world.is_first and RunFolder(config.run.out).is_of(launch_name()), world.device):
            config = _go_on(config, world)
        try:
            train(config, world)
        except Interrupted as stop:
            how = "repeat the command with" if world.size > 1 else f"tailprop train {shlex.quote(str(config.run.out))}"
            raise Interrupted(f"{stop}; to go on: {how} --run.resume", stop.number) from None


def _go_on(config: Any, world: World) -> Any:
    """The settings of a run that this launch of torchrun began, and that it has started again."""
    is_restart = any_true(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0, world.device)
    if config.run.overwrite and not is_restart:
        raise ValueError(
            f"{config.run.out} was begun by a launch of the same name ({launch_name()}): go on with it (without "
            "--run.overwrite), or give torchrun another --rdzv-id"
        )
    if world.is_first:
        print(f"started again: {config.run.out} goes on")
    return dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True, overwrite=False))


def train(config: Any, world: World, summary: bool = True) -> tuple[Trainer, Any]:
    """Train, draw the learning curve, and say what came out."""
    task = find_task(config.task)[1](config, world)
    trainer = Trainer(task, config.optim, config.run, to_dict(config), world)
    history = trainer.run()
    if world.is_first:
        _draw(task, history, trainer.folder.path)
        if summary:
            _say(trainer)
    return trainer, task


def _draw(task: Any, history: list[dict[str, float]], folder: Path) -> None:
    try:
        task.draw(history, folder)
    except Exception as error:  # a finished run must not fail for a picture
        print(f"tailprop: its pictures could not be drawn ({type(error).__name__}: {error})", file=sys.stderr)


def _say(trainer: Trainer) -> None:
    best, folder = trainer.at.best, trainer.folder
    console = Console()
    console.print(
        f"best: [bold]{trainer.task.summary(best)}[/] after epoch {best['epoch']:.0f}; "
        f"{trainer.at.seconds / 60:.1f} minutes of training"
    )
    weights = f"{folder.weights}: the best weights; " if folder.weights.exists() else ""
    print(f"{weights}{folder.path / 'learning.png'}: the curve")
