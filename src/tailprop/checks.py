"""Refusals that say what is wrong and how to mend it."""

from collections.abc import Sequence

__all__ = ["check_at_least", "check_between", "check_choice", "check_model"]


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(map(repr, choices))}")


def check_at_least(name: str, value: float, least: float) -> None:
    if not value >= least:  # written so that NaN is refused too
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} lies between {least} and {most}, got {value}")


def check_model(name: str) -> None:
    import timm

    import tailprop.backbone  # noqa: F401 - registers ours

    if not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r}; `tailprop models` lists ours")
