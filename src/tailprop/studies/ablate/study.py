"""A study: recipes, variants and seeds in a YAML file, resolved into the settings of every run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tailprop.backbone.mixers import MIXERS
from tailprop.engine.config import TaskConfig
from tailprop.engine.recipes import RECIPE_FOLDERS, find_recipe, read_recipe
from tailprop.engine.settings import build, comparable, config_hash, to_dict
from tailprop.tasks import DEFAULT_TASK, find_spec
from tailprop.tasks.restore.model import WINDOW
from tailprop.utils.text import did_you_mean
from tailprop.utils.validation import check_choice

__all__ = ["Run", "Study", "find_study", "plan_runs", "read_study"]

_KEYS = ("recipes", "set", "variants", "seeds")
_RESERVED = {
    "run.out": "the run folders are in --out",
    "run.resume": "runs are always resumed",
    "run.overwrite": "runs are always resumed",
    "run.seed": "give seeds",
}
_DEFAULTS: dict[str, Any] = {"run": {"matched_init": True, "tensorboard": False}}  # of every run; a study may set them


@dataclass(frozen=True)
class Study:
    """The contents of a study file."""

    recipes: tuple[str, ...]
    variants: dict[str, dict[str, Any]]  # name: nested overrides
    seeds: tuple[int, ...]
    shared: dict[str, Any]  # overrides of all runs


@dataclass(frozen=True)
class Run:
    """One training run of a study."""

    recipe: str
    variant: str
    seed: int
    config: TaskConfig

    @property
    def name(self) -> str:
        return f"{self.recipe} {self.variant} seed{self.seed}"

    @property
    def folder(self) -> Path:
        return self.config.run.out

    @property
    def metric(self) -> str:
        return find_spec(self.config.task).metric

    @property
    def hash(self) -> str:
        """Hash of the settings that affect the result, and of the paths of its inputs as they are written."""
        optim = self.config.optim
        inputs = {
            name: value for name, value in _leaves(to_dict(self.config)) if name in _INPUTS or (name in _LATER_INPUTS and value)
        }
        return config_hash(
            {**comparable(self.config), "inputs": inputs, "batch": optim.batch_size, "accumulate": optim.grad_accum_steps}
        )


_INPUTS = (
    "model.init",
    "data.root",
    "data.train",
    "data.test",
    "data.classes",
)
_LATER_INPUTS = ("distill.teacher", "run.patience", "run.time_budget")  # counted where set, so that earlier rows stay valid


def find_study(name: str) -> Path:
    """The file of a study, given by path or by the name of one that is shipped with the recipes."""
    if Path(name).suffix in (".yaml", ".yml"):
        if not Path(name).is_file():
            raise ValueError(f"no study file {name}")
        return Path(name)
    folders = [folder / "studies" for folder in RECIPE_FOLDERS]
    known = {path.stem: path for folder in reversed(folders) if folder.is_dir() for path in sorted(folder.glob("*.yaml"))}
    if name not in known:
        raise ValueError(f"no study {name!r}; give a YAML file, or {did_you_mean(name, sorted(known))}")
    return known[name]


def read_study(path: Path, recipes: Sequence[str] = (), seeds: Sequence[int] = ()) -> Study:
    """Read a study; recipes and seeds that are given here replace its own."""
    values = read_recipe(path)
    for key in values:
        if key not in _KEYS:
            raise ValueError(f"{path}: unknown key {key}; {did_you_mean(str(key), _KEYS)}")
    try:
        study = Study(
            recipes=tuple(recipes) or _names(values.get("recipes", [])),
            variants=_variants(values.get("variants")),
            seeds=_seeds(list(seeds) or values.get("seeds", [0])),
            shared=_nested(values.get("set"), "set"),
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not study.recipes:
        raise ValueError(f"{path} names no recipes; give one with --recipe")
    return study


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"recipes must be a list of names or paths, got {value!r}")
    return tuple(value)


def _variants(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not value:
        raise ValueError("variants must be a mapping of names to settings, with at least one name")
    for name in value:
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w.+-]*", name):
            raise ValueError(
                f"{name!r} cannot be the name of a variant, because folders are named so; use letters, digits and _"
            )
    return {name: _nested(settings, f"variant {name}") for name, settings in value.items()}


def _seeds(value: Any) -> tuple[int, ...]:
    is_list = isinstance(value, list) and value and all(type(seed) is int and seed >= 0 for seed in value)
    if not is_list or len(set(value)) < len(value):
        raise ValueError(f"seeds must be a list of different numbers, 0 or larger, got {value!r}")
    return tuple(value)


def _nested(settings: Any, where: str) -> dict[str, Any]:
    """Overrides as nested dicts; a dot in a name is a level, as in model.args.mixer."""
    if settings is not None and not isinstance(settings, dict):
        raise ValueError(f"{where} must be a mapping of settings, got {settings!r}")
    nested: dict[str, Any] = {}
    for name, value in (settings or {}).items():
        for part in reversed(str(name).split(".")):
            value = {part: _nested(value, where) if isinstance(value, dict) else value}
        nested = _merged(nested, value)
    for name, _ in _leaves(nested):
        if name in _RESERVED:
            raise ValueError(f"{where} must not have {name}: {_RESERVED[name]}")
    return nested


def _leaves(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in values.items():
        is_section = isinstance(value, dict) and bool(value)
        rows += _leaves(value, f"{prefix}{name}.") if is_section else [(f"{prefix}{name}", value)]
    return rows


def _merged(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    both = [name for name in now if isinstance(now[name], dict) and isinstance(before.get(name), dict)]
    return before | now | {name: _merged(before[name], now[name]) for name in both}


def plan_runs(study: Study, out: Path) -> list[Run]:
    """The settings of every run; raises if one is wrong."""
    paths = [find_recipe(name) for name in study.recipes]
    stems = [path.parent.name if path.name == "config.yaml" else path.stem for path in paths]
    if len(set(stems)) < len(stems):
        raise ValueError(f"two recipes have the same name ({', '.join(stems)}); rename a file")
    runs = []
    for recipe, path in zip(stems, paths, strict=True):
        for variant in study.variants:
            config = _resolve(study, path, variant)
            for seed in study.seeds:
                folder = out / "runs" / recipe / variant / f"seed{seed}"
                run = replace(config.run, seed=seed, out=folder, resume=True, overwrite=False)
                runs.append(Run(recipe, variant, seed, replace(config, run=run)))
    return runs


def _resolve(study: Study, path: Path, variant: str) -> TaskConfig:
    values = read_recipe(path)
    for layer in (_DEFAULTS, study.shared, study.variants[variant]):
        values = _merged(values, layer)
    try:
        config = build(find_spec(values.get("task", DEFAULT_TASK)).config_type(), values)
        config.check()
        if "mixer" in config.model.args:
            check_choice("mixer", config.model.args["mixer"], (*MIXERS, *([WINDOW] if config.task == "restore" else [])))
    except ValueError as error:
        raise ValueError(f"variant {variant} of {path}: {error}") from None
    return config
