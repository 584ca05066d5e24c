"""Requests and answers: numbers that are checked, and images as bytes behind a line of numbers.

Shapes: H, W an image, C = 1 gray or 3 colour.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from tailprop.utils.parsing import parse_json
from tailprop.utils.text import excerpt, printable

__all__ = ["Bytes", "choice", "frame", "magma", "number", "points", "read_body", "text"]

_LONGEST_BODY: Final = 1 << 16  # of a request that is not an image
_MOST_POINTS: Final = 64

Bytes = npt.NDArray[np.uint8]


async def read_body(request: Request) -> dict[str, Any]:
    """The JSON object of a request."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > _LONGEST_BODY:
            raise ValueError("the request is too long")
    found = parse_json(bytes(data), "the request")
    if not isinstance(found, dict):
        raise ValueError("the request must be a JSON object")
    return found


def number(body: Mapping[str, Any], name: str, least: float, most: float, default: float | None = None) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} must be a number from {least:g} to {most:g}, got {excerpt(value)}")
    return float(value)


def text(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str) or len(value) > 200:
        raise ValueError(f"{name} must be a short text, got {excerpt(value)}")
    return value


def choice(body: Mapping[str, Any], name: str, known: Sequence[str]) -> str:
    value = text(body, name)
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {excerpt(value)}")
    return value


def points(body: Mapping[str, Any], name: str) -> tuple[tuple[float, float], ...]:
    """Points (x, y) as shares of width and height, from 0 to 1."""
    value = body.get(name, [])
    if not isinstance(value, list) or len(value) > _MOST_POINTS:
        raise ValueError(f"{name} must be a list of at most {_MOST_POINTS} points")
    found = []
    for point in value:
        if not (isinstance(point, list) and len(point) == 2):
            raise ValueError(f"{name} must be pairs of numbers")
        pair = {"x": point[0], "y": point[1]}
        found.append((number(pair, "x", 0, 1), number(pair, "y", 0, 1)))
    return tuple(found)


def frame(numbers: Mapping[str, Any], images: Mapping[str, Bytes]) -> Response:
    """Numbers and images in one answer: the length of the JSON, the JSON, and the pixels of the images in its order."""
    listed = [{"name": name, "height": i.shape[0], "width": i.shape[1], "channels": i.shape[2]} for name, i in images.items()]
    head = json.dumps({**plain(dict(numbers)), "images": listed}, allow_nan=False).encode()
    pixels = b"".join(np.ascontiguousarray(image).tobytes() for image in images.values())
    return Response(struct.pack("<I", len(head)) + head + pixels, media_type="application/octet-stream")


def plain(value: Any) -> Any:
    """The same for JSON: numbers that it does not have become null, and marks that reorder or hide text are escaped."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def magma(values: npt.NDArray[Any]) -> Bytes:
    """Values from 0 to 1 as colours, (H, W) -> (H, W, 3)."""
    from matplotlib import colormaps

    table = (255 * colormaps["magma"](np.arange(256))[:, :3]).round().astype(np.uint8)
    return table[(255 * np.clip(values, 0, 1)).round().astype(np.uint8)]
