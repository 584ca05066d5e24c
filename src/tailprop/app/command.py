"""`tailprop app`: serve the page on 127.0.0.1 until Ctrl-C."""

import errno
import os
import socket
import sys
import threading
import webbrowser

import uvicorn

from tailprop.app.library import Library
from tailprop.app.options import App
from tailprop.app.pages import State, create_app
from tailprop.app.store import Photographs
from tailprop.app.work import Jobs, Views
from tailprop.data.images import suppress_pillow_warnings
from tailprop.utils.text import say

__all__ = ["create_config", "create_state", "listen", "open_browser", "run"]

_HOST = "127.0.0.1"  # there is no option for another


class _Server(uvicorn.Server):
    """Opens the browser once it answers, and cancels jobs before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, state: State, address: str, browser: bool) -> None:
        super().__init__(config)
        self.state, self.address, self.browser = state, address, browser

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.state.jobs.close()
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        say(f"TailProp is at {self.address} (Ctrl-C ends it)", flush=True)
        if self.browser:
            threading.Thread(target=open_browser, args=(self.address,), daemon=True).start()


def run(options: App) -> int:
    options.check()
    with listen(options.port) as listener:
        port = listener.getsockname()[1]
        state = create_state(options)
        server = _Server(create_config(state, port), state, f"http://{_HOST}:{port}", options.browser)
        try:
            with suppress_pillow_warnings():
                server.run([listener])
        except KeyboardInterrupt:  # uvicorn repeats the signal once it has closed
            pass
        finally:
            state.close()
    say("closed")
    return 0


def create_state(options: App) -> State:
    """What the requests of a page share."""
    library = Library(options.run, options.runs)
    return State(Photographs(), Views(), Jobs(options.threads), library, options.images)


def create_config(state: State, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(state, port),
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
        ws="none",
    )


def listen(port: int) -> socket.socket:
    """A socket at a port of this machine alone."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # a port that was just closed can be taken at once; elsewhere this would share it
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_HOST, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} is in use; choose another with --port, or let one be found with --port 0") from None
        raise ValueError(f"cannot listen on port {port} ({error.strerror}); choose another with --port") from None
    return listener


def open_browser(address: str) -> None:
    has_screen = sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    try:
        opened = has_screen and webbrowser.open(address)
    except webbrowser.Error:
        opened = False
    if not opened:
        say(f"no browser could be opened; open {address} in one yourself", error=True, flush=True)
