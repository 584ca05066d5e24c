"""An extension of griffe: the comment at the end of a field's line is its documentation where it has no other."""

import re
from typing import Any

import griffe

COMMENT = re.compile(r"\s#\s+(?!noqa|type:)(.+?)\s*$")


class TrailingComments(griffe.Extension):
    """`boxes: Tensor  # (N, 4)` is shown with "(N, 4)", and a method of a protocol likewise."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        self._document(attr)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        self._document(func)

    def _document(self, item: griffe.Attribute | griffe.Function) -> None:
        if item.docstring is None and item.lines and (found := COMMENT.search(item.lines[-1])):
            item.docstring = griffe.Docstring(found[1][:1].upper() + found[1][1:] + ".", parent=item)
