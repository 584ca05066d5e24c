"""The options of a command, read by tyro; what does not exist or does not fit is refused in a line."""

import contextlib
import dataclasses
import io
import itertools
import json
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeVar

import tyro
import yaml

from tailprop.engine.settings import aliases
from tailprop.utils.text import closest

__all__ = ["Checkpoint", "option_names", "parse_options", "parse_pairs"]

T = TypeVar("T")
Checkpoint = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="CHECKPOINT")]
# what timm's and other training programs call it: what it is called here
_ELSEWHERE = {
    "aa": "auto-augment",
    "amp": "precision",
    "bs": "batch-size",
    "clip": "clip-grad",
    "data-dir": "root",
    "data-path": "root",
    "dataset": "source",
    "decay": "sched",
    "drop-path-rate": "drop-path",
    "image-size": "size-px",
    "img-size": "size-px",
    "initial-checkpoint": "init",
    "input-size": "size-px",
    "learning-rate": "lr",
    "matrix-lr": "muon-lr-scale",
    "mixer": "args",
    "mixer-args": "args",
    "model-ema-decay": "ema",
    "model-kwargs": "args",
    "num-epochs": "epochs",
    "num-workers": "workers",
    "output": "out",
    "output-dir": "out",
    "reprob": "erase",
    "opt": "name",
    "opt-betas": "betas",
    "torchcompile": "compile",
    "wd": "weight-decay",
}


def parse_options(kind: type[T], args: Sequence[str], prog: str, description: str | None = None, default: T | None = None) -> T:
    """An instance of a dataclass from the command line."""
    given: dict[str, Any] = {} if default is None else {"default": default}  # to tyro, none is a default too
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options, strange = tyro.cli(
                kind,
                args=_current_names(kind, args),
                prog=prog,
                description=description,
                return_unknown_args=True,
                registry=_REGISTRY,
                **given,
            )
    except SystemExit as stop:
        if not stop.code:  # of help
            raise
        raise ValueError(f"{_sentence(said.getvalue())}; {prog} --help explains") from None
    if strange:
        raise ValueError(_refusal(strange, list(option_names(kind)), prog))
    return options if default is None else _merge_pairs(default, options)


def _merge_pairs(default: T, options: T) -> T:
    """Options whose name=value pairs are added to those of the default, not put in their place."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(options):  # type: ignore[arg-type] # T is a dataclass
        before, now = getattr(default, field.name), getattr(options, field.name)
        if dataclasses.is_dataclass(now):
            changes[field.name] = _merge_pairs(before, now)
        elif isinstance(now, dict):
            changes[field.name] = _merge(before, now)
    return dataclasses.replace(options, **changes)  # type: ignore[type-var]


def _merge(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    merged = before | now
    both = [name for name in now if isinstance(now[name], dict) and isinstance(before.get(name), dict)]
    return merged | {name: _merge(before[name], now[name]) for name in both}


def _current_names(kind: Any, args: Sequence[str]) -> list[str]:
    """Arguments with renamed options under the names they have today."""
    renamed = {f"--{old}".replace("_", "-"): f"--{new}".replace("_", "-") for old, new in aliases(kind)}

    def current(arg: str) -> str:
        name, equals, value = arg.partition("=")
        return renamed.get(name.replace("_", "-"), name) + equals + value

    return [current(arg) if arg.startswith("--") else arg for arg in args]


_REGISTRY = tyro.constructors.ConstructorRegistry()


@_REGISTRY.primitive_rule
def _name_value_pairs(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Arguments of a model, whatever they are: mixer=cauchy depths=[2,2,4,2] mixer_args.scale_init=0.2."""
    if info.type not in (dict[str, Any],) and typing.get_origin(info.type) is not dict:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE ...",
        instance_from_str=parse_pairs,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [f"{name}={json.dumps(v)}" for name, v in value.items()],
    )


def parse_pairs(texts: Sequence[str]) -> dict[str, Any]:
    """Values by name from texts such as mixer=cauchy; a value is read as YAML, a dot leads into a value that has names."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"expected name=value, got {text!r}")
        *path, leaf = name.split(".")
        inner = values
        for part in path:
            inner = inner.setdefault(part, {})
        inner[leaf] = yaml.safe_load(value)
    return values


def _sentence(framed: str) -> str:
    """The first part of what tyro says of a mistake, without the frame it draws around it."""
    lines = [line.strip().strip("│|").strip() for line in framed.strip().splitlines()[1:]]  # the first is the frame's title
    inside = itertools.dropwhile(_is_rule, lines)  # on a terminal without such letters a rule is below the title
    body = itertools.takewhile(lambda line: not _is_rule(line), inside)
    said = " ".join(" ".join(body).split())
    return re.sub(r"^Missing from (.+?): (.+) \(required\)", r"\1 needs \2", said).removesuffix(".")


def _is_rule(line: str) -> bool:
    return not line.strip("─-╭╮╰╯+ ")


def option_names(kind: Any, prefix: str = "--") -> Iterator[str]:
    """The names of the options of a dataclass, those of its parts included."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, name = hints[field.name], prefix + field.name.replace("_", "-")
        if typing.get_origin(hint) is Annotated:  # what stands without a name, is hidden, or a part without a prefix
            hint, name = typing.get_args(hint)[0], ""
        if dataclasses.is_dataclass(hint):
            yield from option_names(hint, f"{name}." if name else prefix)
        elif name:
            yield name


def _refusal(strange: list[str], known: list[str], prog: str) -> str:
    wrong = next((arg.split("=")[0] for arg in strange if arg.startswith("-")), strange[0])
    name = wrong.replace("_", "-")
    close = closest(name, known, cutoff=0.85) or _meant(name, known)
    close = close or closest(name, known, most=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"{prog} --help lists what there is"
    return f"unknown option {wrong}; {hint}"


def _meant(name: str, known: list[str]) -> list[str]:
    """Options of that name in another section, or of another name elsewhere."""
    last = _last(name)
    return [option for option in known if _last(option) == _ELSEWHERE.get(last, last)]


def _last(option: str) -> str:
    return option.lstrip("-").rpartition(".")[2]
