"""The options of a command, read by tyro; what does not exist or does not fit is refused in a line."""

import contextlib
import dataclasses
import difflib
import io
import itertools
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeVar

import tyro

__all__ = ["Checkpoint", "option_names", "parse_options"]

T = TypeVar("T")
Checkpoint = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="CHECKPOINT")]
# what timm's and other training programs call it: what it is called here
_ELSEWHERE = {
    "aa": "auto-augment",
    "amp": "precision",
    "batch-size": "batch",
    "data-dir": "root",
    "data-path": "root",
    "dataset": "source",
    "drop-path-rate": "drop-path",
    "image-size": "size-px",
    "img-size": "size-px",
    "initial-checkpoint": "init",
    "input-size": "size-px",
    "learning-rate": "lr",
    "model-ema-decay": "ema",
    "num-epochs": "epochs",
    "num-workers": "workers",
    "output": "out",
    "output-dir": "out",
    "reprob": "erase",
    "torchcompile": "compile",
    "wd": "weight-decay",
}


def parse_options(kind: type[T], args: Sequence[str], prog: str, description: str | None = None, default: T | None = None) -> T:
    """An instance of a dataclass from the command line."""
    given: dict[str, Any] = {} if default is None else {"default": default}  # to tyro, none is a default too
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options, strange = tyro.cli(kind, args=args, prog=prog, description=description, return_unknown_args=True, **given)
    except SystemExit as stop:
        if not stop.code:  # of help
            raise
        raise ValueError(f"{_sentence(said.getvalue())}; {prog} --help explains") from None
    if strange:
        raise ValueError(_refusal(strange, list(option_names(kind)), prog))
    return options


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
    close = difflib.get_close_matches(name, known, 1, cutoff=0.85) or _meant(name, known)
    close = close or difflib.get_close_matches(name, known, 3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"{prog} --help lists what there is"
    return f"unknown option {wrong}; {hint}"


def _meant(name: str, known: list[str]) -> list[str]:
    """Options of that name in another section, or of another name elsewhere."""
    last = _last(name)
    return [option for option in known if _last(option) == _ELSEWHERE.get(last, last)]


def _last(option: str) -> str:
    return option.lstrip("-").rpartition(".")[2]
