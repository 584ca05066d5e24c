"""`tailprop train RECIPE`: train from a recipe; every setting can be overridden on the command line.

PyTorch is imported after the options are parsed, because that takes seconds.
"""

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailprop.engine.config import TaskConfig
from tailprop.engine.options import parse_options
from tailprop.engine.recipes import find_recipe, read_recipe, recipe_names
from tailprop.engine.settings import build
from tailprop.runtime.signals import Interrupted
from tailprop.tasks import DEFAULT_TASK, find_spec
from tailprop.utils.text import say

if TYPE_CHECKING:
    from tailprop.runtime.distributed import World


_DRY_RUN = "--dry-run"


@dataclass(frozen=True)
class DryRun:
    """Settings of a training that is only described."""

    config: TaskConfig


def parse(args: list[str]) -> Any:
    """The settings of the recipe, overridden by the options after it."""
    if _DRY_RUN in args:
        return DryRun(parse([arg for arg in args if arg != _DRY_RUN]))
    if not args or args[0].startswith("-"):
        raise ValueError(f"no recipe given; give a YAML file, a run folder or one of {', '.join(recipe_names())}")
    path = find_recipe(args[0])
    values = read_recipe(path)
    try:
        config = find_spec(values.get("task", DEFAULT_TASK)).config_type()
        default = build(config, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if path.parent == Path(args[0]):  # a run folder, which may have been moved
        default = _in_folder(default, path.parent)
    elif default.run.out == type(default.run)().out:  # by default every recipe has its own run folder
        default = _in_folder(default, default.run.out.with_name(path.stem))
    about = f"{config.__doc__} --dry-run prints the settings, the data and the time it will take, and trains nothing."
    chosen = parse_options(config, args[1:], f"tailprop train {args[0]}", about, default=default)
    chosen.check()
    return chosen


def _in_folder(config: TaskConfig, out: Path) -> TaskConfig:
    return replace(config, run=replace(config.run, out=out))


def run(config: TaskConfig | DryRun) -> None:
    if isinstance(config, DryRun):
        _describe(config.config)
    else:
        _train(config)


def _describe(config: TaskConfig) -> None:
    from tailprop.engine.dry_run import dry_run
    from tailprop.runtime.distributed import process_group

    with process_group(config.run.device, config.run.threads) as world:
        dry_run(find_spec(config.task), config, world)


def _train(config: TaskConfig) -> None:
    from tailprop.engine.launch import train
    from tailprop.engine.run_folder import RunFolder
    from tailprop.runtime.distributed import any_rank, launch_id, process_group

    with process_group(config.run.device, config.run.threads) as world:
        if any_rank(world.is_main and RunFolder(config.run.out).was_started_by(launch_id()), world.device):
            config = _resume_restarted(config, world)
        try:
            train(find_spec(config.task), config, world)
        except Interrupted as stop:
            command = "the same command and" if world.size > 1 else f"tailprop train {shlex.quote(str(config.run.out))}"
            raise Interrupted(f"{stop}; resume with: {command} --run.resume", stop.number) from None


def _resume_restarted(config: TaskConfig, world: "World") -> TaskConfig:
    """The settings, with resume set if this launch of torchrun started the run and now restarts it."""
    from tailprop.runtime.distributed import any_rank, launch_id

    is_restart = any_rank(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0, world.device)
    if config.run.overwrite and not is_restart:
        raise ValueError(
            f"{config.run.out} was started by a launch with the same id ({launch_id()}); resume it (without "
            "--run.overwrite), or give torchrun another --rdzv-id"
        )
    if world.is_main:
        say(f"restarted by torchrun, resuming {config.run.out}")
    return replace(config, run=replace(config.run, resume=True, overwrite=False))
