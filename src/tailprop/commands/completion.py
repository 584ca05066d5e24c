"""`tailprop completion SHELL`: print a script that completes commands, options, recipes and files."""

import ast
import contextlib
import dataclasses
import io
import operator
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from importlib.util import find_spec as find_module
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from tailprop.engine.options import REGISTRY, find_options
from tailprop.engine.recipes import recipe_names
from tailprop.tasks import TASKS, find_spec
from tailprop.utils.parsing import read_text

__all__ = ["Completion", "run"]

# Types are made here from what the other commands have, which a type checker cannot follow.
_ANNOTATED: Any = Annotated
_POSITIONAL: Any = tyro.conf.Positional


@dataclass(frozen=True)
class Completion:
    """Print a completion script for a shell."""

    shell: Annotated[tyro.conf.Positional[Literal["bash", "zsh"]], tyro.conf.arg(metavar="SHELL")]
    """The shell."""


def run(options: Completion) -> None:
    from tailprop_cli import COMMANDS

    kinds = [
        _ANNOTATED[_options(name, module, kind), tyro.conf.subcommand(name, description=what, prefix_name=False)]
        for name, (module, kind, what) in COMMANDS.items()
    ]
    script = io.StringIO()
    args = ["--tyro-print-completion", options.shell]
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        tyro.cli(reduce(operator.or_, kinds), args=args, prog="tailprop", registry=REGISTRY)
    names = " ".join(recipe_names())
    sys.stdout.write({"bash": _for_bash, "zsh": _for_zsh}[options.shell](script.getvalue(), names))


# tyro completes commands, options and their values, but no arguments without an option: recipes and files.


def _for_bash(script: str, names: str) -> str:
    return f"""{script}
_tailprop_words() {{
  _tyro_tailprop "$@"
  [[ -z "${{COMPREPLY[0]}}" ]] && COMPREPLY=()
  if [[ $COMP_CWORD -eq 2 && "${{COMP_WORDS[1]}}" =~ ^(train|recipes|info)$ && "$2" != -* ]]; then
    COMPREPLY=($(compgen -W "{names}" -- "$2"))
  fi
}}
complete -o bashdefault -o default -F _tailprop_words tailprop
"""


def _for_zsh(script: str, names: str) -> str:
    call = '_tyro_tailprop "$@"\n'
    script = script.replace('"$CURRENT" <<', '"$((CURRENT - 1))" <<')  # zsh counts from 1, tyro's completer from 0
    body = script.removesuffix("\n").removesuffix("\n").removesuffix(call.strip())
    return f"""{body}
if (( CURRENT == 3 )) && [[ ${{words[2]}} == (train|recipes|info) && ${{words[3]}} != -* ]]; then
  compadd -- {names}
  _files
elif (( CURRENT > 2 )) && [[ ${{words[CURRENT]}} != -* && ${{words[CURRENT-1]}} != -* ]]; then
  _files
else
  {call.strip()}
fi
"""


def _options(name: str, module: str, kind: str | None) -> Any:
    """The dataclass of a command's options; of a command whose options depend on a task, those of every task."""
    if kind is not None and ":" in kind:
        return find_options(module, kind)
    if kind is not None:
        return _from_source(module, kind)
    specs = [find_spec(task) for task in TASKS]
    if name == "train":
        return _merged(name, [spec.config_type() for spec in specs])
    if name == "bench":
        return _merged(name, [spec.options(spec.bench) for spec in specs if spec.bench])
    references = [spec.evaluate if name == "eval" else spec.predict for spec in specs]
    return _merged(name, [spec.options(reference) for spec, reference in zip(specs, references, strict=True)])


def _from_source(module: str, kind: str) -> Any:
    """A dataclass with the names of a command's options, read from its source: importing it may import PyTorch."""
    found = find_module(module)
    assert found is not None
    assert found.origin is not None
    tree = ast.parse(read_text(Path(found.origin)))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
    fields: list[tuple[str, Any]] = []
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            hint = ast.unparse(node.annotation)
            own = bool if hint == "bool" else str
            fields.append((node.target.id, _POSITIONAL[own] if "Positional" in hint else own))
    return dataclasses.make_dataclass(kind, fields, kw_only=True)


def _merged(name: str, kinds: Sequence[type]) -> Any:
    """One dataclass with the fields of several; a field of different types becomes text."""
    hints: dict[str, list[Any]] = {}
    for kind in kinds:
        for field, hint in typing.get_type_hints(kind, include_extras=True).items():
            if tyro.conf.Suppress not in getattr(hint, "__metadata__", ()):
                hints.setdefault(field, []).append(hint)
    fields = [(field, _common(field, found)) for field, found in hints.items()]
    return dataclasses.make_dataclass(name, fields, kw_only=True)


def _common(name: str, hints: Sequence[Any]) -> Any:
    different = list(dict.fromkeys(hints))
    if len(different) == 1:
        return different[0]
    if all(dataclasses.is_dataclass(hint) for hint in different):
        return _merged(name, different)
    return str
