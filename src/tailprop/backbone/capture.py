"""Constants that are computed once in an exported graph, where eager mode would take them from a cache.

A graph whose sizes are not known yet computes every cosine matrix and every grid of frequencies itself. The layers of a stage
share them: otherwise they are most of the graph, and of the time that converters take for it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

__all__ = ["full_dtype", "shared_in_graph", "sharing_constants"]

_shared: dict[Any, Tensor] | None = None  # inside `sharing_constants`; fake tensors must not outlive the capture


def sharing_constants() -> AbstractContextManager[None]:
    """In here constants are computed once while a graph is exported; elsewhere this does nothing.

    Neither while Dynamo follows the code, for torch.compile and strict export: its compiler finds copies itself.
    """
    if torch.compiler.is_dynamo_compiling() or not torch.compiler.is_exporting():
        return nullcontext()
    return _scope()


@contextmanager
def _scope() -> Iterator[None]:
    global _shared
    before, _shared = _shared, {}
    try:
        yield
    finally:
        _shared = before


def shared_in_graph(build: Callable[[], Tensor], *key: Any) -> Tensor:
    """build(), once for each key inside `sharing_constants`.

    Sizes in a key are compared as expressions: comparing symbolic numbers would restrict the sizes of the graph.
    """
    if torch.compiler.is_dynamo_compiling() or _shared is None:
        return build()
    name = tuple(map(str, key))
    if name not in _shared:
        _shared[name] = build()
    return _shared[name]


def full_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 for float64; `torch.promote_types` would be an operation of an exported graph."""
    return torch.float64 if dtype == torch.float64 else torch.float32
