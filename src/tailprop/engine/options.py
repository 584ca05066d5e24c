"""Command-line options, parsed by tyro; an unknown option or a wrong value raises a one-line error."""

import contextlib
import dataclasses
import io
import itertools
import json
import re
import typing
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Annotated, Any, TypeVar

import tyro

from tailprop.engine.settings import aliases, check_numbers
from tailprop.utils.parsing import parse_yaml
from tailprop.utils.text import closest

__all__ = ["REGISTRY", "Checkpoint", "find_options", "option_names", "parse_options", "parse_pairs"]

T = TypeVar("T")
Checkpoint = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="CHECKPOINT")]
# name in timm and other training programs: name here
_OTHER_NAMES = {
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


def find_options(module_name: str, reference: str) -> type[Any]:
    """The dataclass of a command's options: of its module, or of another one ("module:dataclass") that is imported faster."""
    other, _, name = reference.rpartition(":")
    return getattr(import_module(other or module_name), name)


def parse_options(kind: type[T], args: Sequence[str], prog: str, description: str | None = None, default: T | None = None) -> T:
    """Parse command-line arguments into a dataclass."""
    if any(not arg or (arg.endswith("=") and arg.startswith("--")) for arg in args):
        raise ValueError(f"an option is given an empty value; leave the option out, or see {prog} --help")
    given: dict[str, Any] = {} if default is None else {"default": default}  # tyro takes None as a default value
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            options, unknown = tyro.cli(
                kind,
                args=_current_names(kind, args),
                prog=prog,
                description=description,
                return_unknown_args=True,
                registry=REGISTRY,
                **given,
            )
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise ValueError(f"{_error_text(stderr.getvalue())}; see {prog} --help") from None
    if unknown:
        raise ValueError(_unknown_option(unknown, list(option_names(kind)), prog))
    check_numbers(options)
    return options if default is None else _merge_pairs(default, options)


def _merge_pairs(default: T, options: T) -> T:
    """Merge name=value pairs with those of the default instead of replacing them."""
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
    """Replace old names of renamed options, and none, as the help texts have it, by the None that tyro reads."""
    renamed = {f"--{old}".replace("_", "-"): f"--{new}".replace("_", "-") for old, new in aliases(kind)}

    def current(arg: str) -> str:
        name, equals, value = arg.partition("=")
        return renamed.get(name.replace("_", "-"), name) + equals + ("None" if value == "none" else value)

    return [current(arg) if arg.startswith("--") else "None" if arg == "none" else arg for arg in args]


REGISTRY = tyro.constructors.ConstructorRegistry()


@REGISTRY.primitive_rule
def _name_value_pairs(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Parse any dict option as name=value pairs: mixer=cauchy depths=[2,2,4,2] mixer_args.scale_init=0.2."""
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
    """Parse texts such as mixer=cauchy into a dict; values are YAML, and a dot in a name makes a nested dict."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"expected name=value, got {text!r}")
        *path, leaf = name.split(".")
        inner = values
        for part in path:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{name} is given a value and a part with a value; give one of them")
        inner[leaf] = parse_yaml(value, f"the value of {name}")
    return values


def _error_text(framed: str) -> str:
    """The first part of tyro's error message, without the frame around it."""
    lines = [line.strip().strip("│|").strip() for line in framed.strip().splitlines()[1:]]  # the first is the frame's title
    inside = itertools.dropwhile(_is_rule, lines)  # on an ASCII terminal there is a rule below the title
    body = itertools.takewhile(lambda line: not _is_rule(line), inside)
    text = " ".join(" ".join(body).split())
    return re.sub(r"^Missing from (.+?): (\S+) (.+?)\.? \(required\)", r"\1 needs \2 (\3)", text).removesuffix(".")


def _is_rule(line: str) -> bool:
    return not line.strip("─-╭╮╰╯+ ")


def option_names(kind: Any, prefix: str = "--") -> Iterator[str]:
    """The option names of a dataclass, including those of nested dataclasses."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, name = hints[field.name], prefix + field.name.replace("_", "-")
        if typing.get_origin(hint) is Annotated:  # a positional or hidden option, or a section without a prefix
            hint, name = typing.get_args(hint)[0], ""
        if dataclasses.is_dataclass(hint):
            yield from option_names(hint, f"{name}." if name else prefix)
        elif name:
            yield name


def _unknown_option(unknown: list[str], known: list[str], prog: str) -> str:
    wrong = next((arg.split("=")[0] for arg in unknown if arg.startswith("-")), unknown[0])
    name = wrong.replace("_", "-")
    close = closest(name, known, cutoff=0.85) or _same_option(name, known)
    close = close or closest(name, known, most=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"see {prog} --help"
    return f"unknown option {wrong}; {hint}"


def _same_option(name: str, known: list[str]) -> list[str]:
    """Options with that name in another section, or that other programs call so."""
    last = _last(name)
    same = [option for option in known if _last(option) == _OTHER_NAMES.get(last, last)]
    return [option for option in same if not option.startswith("--distill.")] or same  # the teacher repeats other settings


def _last(option: str) -> str:
    return option.lstrip("-").rpartition(".")[2]
