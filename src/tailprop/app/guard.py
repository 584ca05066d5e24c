"""What every request passes first: who may ask, how much they may send, and what the page may load.

The page is for the person at this machine. Another web site that is open in the same browser could send requests to it, or give
its own name the address 127.0.0.1 (DNS rebinding) and then read the answers.
"""

from typing import Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HEADERS", "MOST_BYTES", "BodyTooLargeError", "Guard"]

MOST_BYTES: Final = 32 << 20  # of an uploaded image
HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class BodyTooLargeError(Exception):
    """More was sent than is allowed."""


class Guard:
    """Refuses requests of other web sites and long bodies, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, port: int, most_bytes: int = MOST_BYTES) -> None:
        self.app, self.most_bytes = app, most_bytes
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in HEADERS.items())]
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope["method"], headers)
        if refusal is not None:
            status, reason = refusal
            await JSONResponse({"error": reason}, status)(scope, receive, answer)
            return
        await self.app(scope, self._limited(receive), answer)

    @property
    def _too_large(self) -> str:
        return f"the file is larger than {self.most_bytes >> 20} MB; make it smaller first"

    def _refusal(self, method: str, headers: dict[str, str]) -> tuple[int, str] | None:
        if headers.get("host") not in self.hosts:
            return 403, "this page answers to 127.0.0.1 and localhost only"
        if method not in ("GET", "HEAD", "POST"):
            return 405, "only GET and POST"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return 403, "another web site asked"
        if method == "POST" and headers.get("origin") not in self.origins:
            return 403, "another web site asked"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15 or int(length) > self.most_bytes:
            return 413, self._too_large
        return None

    def _limited(self, receive: Receive) -> Receive:
        """The same, until more was sent than is allowed: a body in chunks does not say its length."""
        total = 0

        async def counted() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self.most_bytes:
                raise BodyTooLargeError(self._too_large)
            return message

        return counted
