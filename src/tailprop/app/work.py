"""Work in threads: views that are replaced by newer ones while a slider moves, and jobs with progress that can be cancelled."""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, Final, Literal, TypeVar

from tailprop.utils.errors import first_line, missing_memory
from tailprop.utils.text import printable

__all__ = ["CancelledError", "Job", "Jobs", "StaleError", "Summary", "Views", "explain"]

_MOST_CLIENTS: Final = 256
_MOST_JOBS: Final = 3  # that are over, whose images are kept
_MOST_WAITING: Final = 32

T = TypeVar("T")


class StaleError(Exception):
    """A newer request of the same page has replaced this one."""


class CancelledError(Exception):
    """The user cancelled the job, or the page was closed."""


def explain(error: BaseException) -> str:
    """An error for the page, in one line."""
    if (missing := missing_memory(error)) is not None:
        return f"out of memory ({missing}); take a smaller image"
    if isinstance(error, ValueError | OSError | ModuleNotFoundError):  # a missing package is named with the extra that adds it
        return printable(" ".join(str(error).split()))
    return printable(f"unexpected error: {type(error).__name__}: {first_line(error)}")


def _set_threads(threads: int) -> None:
    """Threads of PyTorch for what runs in this thread; it is imported here, because the page is shown before."""
    import torch

    if threads:
        torch.set_num_threads(threads)


class Views:
    """Runs views in threads. Of the views that one page asks for under one name only the newest is computed."""

    def __init__(self, threads: int = 2) -> None:
        # One thread each: a map of 256 px is too small to share, and threads that wait for each other make drags stutter.
        self.pool = ThreadPoolExecutor(threads, "view", initializer=partial(_set_threads, 1))
        self._newest: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._tickets = count(1)
        self._lock = Lock()

    async def run(self, client: str, name: str, compute: Callable[[Callable[[], None]], T]) -> T:
        """The result of `compute`, which gets a function that raises `StaleError` once there is a newer request."""
        key, ticket = (client, name), next(self._tickets)
        with self._lock:
            self._newest[key] = ticket
            self._newest.move_to_end(key)
            while len(self._newest) > _MOST_CLIENTS:
                self._newest.popitem(last=False)

        def check() -> None:
            if self._newest.get(key, ticket) != ticket:
                raise StaleError

        def guarded() -> T:
            check()
            return compute(check)

        return await asyncio.get_running_loop().run_in_executor(self.pool, guarded)

    async def once(self, compute: Callable[[], T]) -> T:
        """The result of a short computation that nothing replaces."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, compute)

    def close(self) -> None:
        self._newest.clear()
        self.pool.shutdown(wait=False, cancel_futures=True)


State = Literal["waiting", "running", "done", "failed", "cancelled"]


@dataclass
class Job:
    """Work with progress. `version` counts what a listener has not seen."""

    title: str
    key: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    state: State = "waiting"
    share: float = 0.0
    error: str = ""
    result: Any = None
    version: int = 0
    stop: bool = False

    def tick(self, share: float) -> None:
        """Add a share of the work; raises if the job was cancelled."""
        if self.stop:
            raise CancelledError
        self.share = min(1.0, self.share + share)
        self.version += 1

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    def summary(self) -> dict[str, Any]:
        found = {"id": self.key, "title": self.title, "state": self.state, "share": round(self.share, 4), "error": self.error}
        return found | {"result": self.result.summary() if self.state == "done" else None}


@dataclass(frozen=True)
class Summary:
    """A result that is nothing but numbers."""

    numbers: dict[str, Any]

    def summary(self) -> dict[str, Any]:
        return self.numbers


class Jobs:
    """Jobs run one after another, each with all threads of a model."""

    def __init__(self, threads: int) -> None:
        self.pool = ThreadPoolExecutor(1, "job", initializer=partial(_set_threads, threads))
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self.closing = False

    def start(self, title: str, work: Callable[[Job], Any]) -> Job:
        job = Job(title)
        self._jobs[job.key] = job
        over = [key for key, kept in self._jobs.items() if kept.is_over]
        for key in over[: max(0, len(over) - _MOST_JOBS)]:
            del self._jobs[key]
        if len(self._jobs) > _MOST_WAITING + _MOST_JOBS:
            del self._jobs[job.key]
            raise ValueError("too many jobs are waiting; cancel some")
        self.pool.submit(self._run, job, work)
        return job

    def _run(self, job: Job, work: Callable[[Job], Any]) -> None:
        try:
            job.tick(0.0)
            job.state = "running"
            job.result = work(job)
            job.state, job.share = "done", 1.0
        except CancelledError:
            job.state = "cancelled"
        except Exception as error:
            job.error, job.state = explain(error), "failed"
        job.version += 1

    def get(self, key: str) -> Job:
        if key not in self._jobs:
            raise ValueError("the page no longer has this job; start it again")
        return self._jobs[key]

    def close(self) -> None:
        """Cancel what runs and what waits."""
        self.closing = True
        for job in self._jobs.values():
            job.stop = True
        self.pool.shutdown(wait=False, cancel_futures=True)
