"""Argument checks, copied from `utils` so that this folder depends on nothing else in the package."""

from collections.abc import Iterable

__all__ = ["check_at_least", "check_choice"]


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(map(repr, choices))}")


def check_at_least(name: str, value: float, least: float) -> None:
    if not value >= least:  # written so that NaN is rejected too
        raise ValueError(f"{name} must be at least {least}, got {value}")
