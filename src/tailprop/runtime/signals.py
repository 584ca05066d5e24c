"""Stop signals: SIGTERM from a cluster that preempts the job, SIGINT from Ctrl-C."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["Interrupted", "handle_stop_signals"]


_STOPPING = b"\ntailprop: stopping after this step or evaluation; Ctrl-C again stops at once\n"


class Interrupted(Exception):  # noqa: N818 - not an error: the run was asked to stop, and did
    """The run was stopped by a signal, after a checkpoint."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number
        self.exit_code = 128 + number  # the convention of shells


@contextmanager
def handle_stop_signals(ask: Callable[[int], None], speak: bool = False) -> Iterator[None]:
    """SIGTERM and SIGINT call `ask` with their number; a second Ctrl-C stops at once. With `speak`, the first prints that."""

    def handle(number: int, _frame: object) -> None:
        ask(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if speak:
                with suppress(OSError):  # Ctrl-C also ends a `tee` that reads our output: a closed pipe
                    os.write(2, _STOPPING)  # not print: the signal may have interrupted a print

    try:
        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread: only that one may set signal handlers
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
