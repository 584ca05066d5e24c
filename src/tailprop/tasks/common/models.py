"""Models of timm by name."""

import difflib

__all__ = ["check_model"]


def check_model(name: str) -> None:
    import timm

    import tailprop.backbone.model  # noqa: F401 - registers ours

    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "`tailprop models` lists ours"
        raise ValueError(f"timm has no model {name!r}; {hint}")
