"""Settings as dataclasses: conversion from and to plain values, comparison, export.

`setting` marks a field that a resumed run may change, that is local to a machine, or that had other names before. The functions
that compare, export or read settings use these marks, so there are no lists of field names.
"""

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from tailprop.utils.text import did_you_mean, excerpt, printable

__all__ = [
    "absolute_paths",
    "aliases",
    "build",
    "check_numbers",
    "comparable",
    "config_hash",
    "differences",
    "portable",
    "setting",
    "to_dict",
]

T = TypeVar("T")


def setting(
    default: Any = dataclasses.MISSING,
    *,
    factory: Any = dataclasses.MISSING,
    free: bool | None = None,
    local: bool | Callable[[Any], bool] = False,
    aliases: tuple[str, ...] = (),
    late: bool = False,
) -> Any:
    """A field of a settings dataclass.

    Args:
        default: Default value; `factory` creates a mutable one.
        free: A resumed run may change it, because it does not affect the result; None = free if local.
        local: It belongs to a machine, such as folders and core counts, and is not exported with weights. A function decides
            by the value.
        aliases: Old names, still accepted in recipes and run folders.
        late: It was added when there were runs already. Its default is not compared, so that their checkpoints still resume.
    """
    metadata = {"free": local is not False if free is None else free, "local": local, "aliases": aliases, "late": late}
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def build(kind: type[T], values: dict[str, Any], where: str = "") -> T:
    """Build a dataclass from plain values; unknown names and wrong types raise an error."""
    values = _current_names(kind, values, where)
    hints = typing.get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type] # T is a dataclass
    for name in values:
        if name not in names:
            raise ValueError(f"unknown setting {where}{name}; {did_you_mean(str(name), names, where)}")
    return kind(**{name: _convert(hints[name], value, f"{where}{name}") for name, value in values.items()})


def _current_names(kind: type, values: dict[str, Any], where: str) -> dict[str, Any]:
    """Replace old names. A class can convert a whole section with a static method `upgrade`."""
    upgrade = getattr(kind, "upgrade", None)
    values = upgrade(dict(values)) if upgrade is not None else dict(values)
    for f in dataclasses.fields(kind):
        for old in f.metadata.get("aliases", ()):
            if old in values:
                if f.name in values:
                    raise ValueError(f"{where}{old} and {where}{f.name} are the same setting; give it once")
                values[f.name] = values.pop(old)
    return values


def check_numbers(settings: Any, where: str = "") -> None:
    """Raise if a number in settings is not finite, or does not fit into 64 bits: no setting means anything then."""
    if dataclasses.is_dataclass(settings):
        values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    else:
        values = settings
    for name, value in values.items():
        if dataclasses.is_dataclass(value) or isinstance(value, dict):
            check_numbers(value, f"{where}{name}.")
        for item in value if isinstance(value, list | tuple) else [value]:
            _check_number(item, f"{where}{name}")


def _check_number(value: Any, name: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} is too large: {excerpt(value)}")


def aliases(kind: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Old and new dotted names of every renamed setting."""
    for f, hint in _fields(kind):
        yield from ((prefix + old, prefix + f.name) for old in f.metadata.get("aliases", ()))
        if dataclasses.is_dataclass(hint):
            yield from aliases(hint, f"{prefix}{f.name}.")


def _fields(kind: Any) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(kind)
    return ((f, hints[f.name]) for f in dataclasses.fields(kind))


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be a section of settings, got {excerpt(value)}")
        return build(typing.cast(type, hint), value, f"{where}.")
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(next(a for a in args if a is not type(None)), value, where)
    if origin is Literal:
        if value not in args:
            raise ValueError(f"{where} must be one of {', '.join(map(str, args))}, got {excerpt(value)}")
        return value
    if origin is tuple:
        return _convert_tuple(args, value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be a mapping, got {excerpt(value)}")
        return value
    if hint is Any:
        return value
    return _convert_scalar(hint, value, where)


def _convert_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or (args[-1] is not Ellipsis and len(value) != len(args)):
        raise ValueError(
            f"{where} must be a list of {'any length' if args[-1] is Ellipsis else len(args)}, got {excerpt(value)}"
        )
    kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
    return tuple(_convert(kind, item, where) for kind, item in zip(kinds, value, strict=True))


def _convert_scalar(hint: Any, value: Any, where: str) -> Any:
    fits = {bool: bool, int: int, float: (int, float, str), str: str, Path: (str, Path)}[hint]  # YAML reads 5e-4 as text
    if (isinstance(value, bool) and hint is not bool) or not isinstance(value, fits):  # type: ignore[arg-type]
        raise ValueError(f"{where} must be of type {hint.__name__}, got {excerpt(value)}")
    if isinstance(value, str | Path):
        _check_text(str(value), hint, where)
    try:
        return hint(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{where} must be of type {hint.__name__}, got {excerpt(value)}") from None


def _check_text(value: str, hint: Any, where: str) -> None:
    """A path must not be empty, which would mean the working directory; text must not control a terminal."""
    if hint is Path and not value:
        raise ValueError(f"{where} is empty; name a file or a folder, or leave it out")
    if printable(value) != value and not any("\ud800" <= c <= "\udfff" for c in value):  # undecodable bytes of a file name
        raise ValueError(f"{where} has control characters: {excerpt(value)}")


def to_dict(config: Any) -> dict[str, Any]:
    """Plain values for YAML or JSON, unchanged by a round trip: 20 given for a float becomes 20.0."""
    return _plain(dataclasses.asdict(build(type(config), _plain(dataclasses.asdict(config)))))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def comparable(config: Any) -> dict[str, Any]:
    """The settings that affect the result; a resumed run needs the same ones."""
    return _select(config, lambda f, value: not f.metadata.get("free", False) and not _is_unset(f, value))


def _is_unset(f: dataclasses.Field[Any], value: Any) -> bool:
    if not f.metadata.get("late", False):
        return False
    return value == (f.default if f.default_factory is dataclasses.MISSING else f.default_factory())


def portable(config: Any) -> dict[str, Any]:
    """The settings exported with weights, without those local to a machine."""
    return _select(config, lambda f, value: not _is_local(f, value))


def _is_local(f: dataclasses.Field[Any], value: Any) -> bool:
    if isinstance(value, str) and Path(value).is_absolute():  # a subfolder of the root may be an absolute path
        return True
    local = f.metadata.get("local", False)
    return local(value) if callable(local) else bool(local)


def _select(config: Any, keep: Callable[[dataclasses.Field[Any], Any], bool]) -> dict[str, Any]:
    """The plain values of the selected fields, recursively."""
    kept: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if keep(f, value):
            kept[f.name] = _select(value, keep) if dataclasses.is_dataclass(value) else _plain(value)
    return kept


def absolute_paths(config: T) -> T:
    """Make the local paths absolute, so that they do not depend on the working directory."""
    changes: dict[str, Any] = {}
    for f in dataclasses.fields(config):  # type: ignore[arg-type] # T is a dataclass
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            changes[f.name] = absolute_paths(value)
        elif _is_local(f, value):
            changes[f.name] = _absolute(value)
    return dataclasses.replace(config, **changes)  # type: ignore[type-var] # T is a dataclass


def _absolute(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_absolute(item) for item in value)
    if isinstance(value, Path):
        return value.absolute()
    # A string may be a path or something else, such as a model name; it is a path if that file exists.
    return str(Path(value).absolute()) if isinstance(value, str) and value and Path(value).exists() else value


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Dotted names of the settings that differ."""
    names = {name for name, _ in _flatten(before) ^ _flatten(now)}
    return sorted(name for name in names if not any(other.startswith(f"{name}.") for other in names))  # a section that is empty


def _flatten(values: dict[str, Any], prefix: str = "") -> set[tuple[str, str]]:
    rows: set[tuple[str, str]] = set()
    for name, value in values.items():
        rows |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {(prefix + name, repr(value))}
    return rows


def config_hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
