"""Call a function when another package is imported.

`import tailprop` promises that timm knows its models afterwards, and must not import timm itself: that takes seconds, and the
command line parses its options without it. timm has no entry points for plugins, and its registry is filled by calls into timm,
so nothing plainer registers the models when timm is imported after tailprop.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

__all__ = ["after_import"]


def after_import(package: str, call: Callable[[], object]) -> None:
    """Call a function once the package is imported: now, if it is already, else right after its import."""
    if package in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _AfterImport(package, call))


class _AfterImport(MetaPathFinder):
    """Finds the package as the others do, and adds a call to the end of its import."""

    def __init__(self, package: str, call: Callable[[], object]) -> None:
        self.package, self.call = package, call
        self.is_searching = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the interface of finders
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != self.package or self.is_searching:
            return None
        self.is_searching = True
        try:
            spec = find_spec(fullname)
        finally:
            self.is_searching = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:  # a failed import can be repeated, a finished one is not
                    sys.meta_path.remove(self)
                    self.call()

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
