"""Commands and functions in forked processes, so that a crash or a hang is an outcome and not the end of the campaign.

The parent has imported everything and computed nothing: a child starts in milliseconds, and no running thread pool is forked.
"""

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import tailprop_cli
from tests.campaign.outcomes import Outcome, Verdict, judge_error, wrong

__all__ = ["Done", "Started", "attempt", "is_running", "run", "start", "stop", "wait"]

Limits = Mapping[int, int]  # of resources, such as RLIMIT_FSIZE
NO_LIMITS: Final[Limits] = {}
PRINTED = 1 << 20  # bytes; the most a pipe holds for everybody
TIMEOUT = 900.0  # seconds; longer is a hang, also on a machine with twenty other programs


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int  # negative: the signal that ended it; 124: it did not end
    out: str
    err: str


@dataclass(frozen=True)
class Started:
    """A command that is running, one process for each rank."""

    children: tuple[int, ...]
    output: tuple[int, int]  # pipes, which are large enough for what is printed: a full disk must not silence a command


def start(args: Sequence[str], cwd: Path, ranks: int = 1, limits: Limits = NO_LIMITS) -> Started:
    """Start a command with limits of its resources: no large file is a full disk."""
    (out, out_end), (err, err_end), children = _pipe(), _pipe(), []
    places = _places(ranks)
    sys.stdout.flush()
    for place in places:
        child = os.fork()
        if child == 0:
            _become(args, cwd, (out_end, err_end), place, limits)
        with contextlib.suppress(OSError):  # also done by the child: whoever comes first
            os.setpgid(child, child)
        children.append(child)
    os.close(out_end)
    os.close(err_end)
    return Started(tuple(children), (out, err))


def _pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PRINTED)
    os.set_blocking(reading, False)
    return reading, writing


def _places(ranks: int) -> list[dict[str, str]]:
    if ranks == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **world} for rank in range(ranks)]


def _become(args: Sequence[str], cwd: Path, output: tuple[int, int], place: dict[str, str], limits: Limits) -> NoReturn:
    code: Any = 1
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, end in enumerate(output, start=1):
            os.dup2(end, number)
        os.environ.update(place)
        os.chdir(cwd)
        sys.argv = ["tailprop", *args]
        for kind, most in limits.items():
            resource.setrlimit(kind, (most, most))
        code = tailprop_cli.main(list(args))
    except SystemExit as stopped:
        code = stopped.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def is_running(started: Started) -> bool:
    """Whether no process of a command has ended; looks without collecting them."""
    return all(os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None for child in started.children)


def stop(started: Started) -> None:
    """Kill all processes of a command and their loader processes at once."""
    for child in started.children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def wait(started: Started, timeout: float = TIMEOUT) -> Done:
    """The result of a command. When a process fails the others are killed after a while, as torchrun does."""
    left, codes, deadline = set(started.children), [], time.monotonic() + timeout
    while left:
        child, status = os.waitpid(next(iter(left)), os.WNOHANG) if len(left) == 1 else _any(left)
        if child:
            left.discard(child)
            codes.append(os.waitstatus_to_exitcode(status))
            if codes[-1] != 0:
                deadline = min(deadline, time.monotonic() + 10)
        elif time.monotonic() > deadline:
            codes.append(codes[-1] if codes and codes[-1] != 0 else 124)
            stop(started)
            deadline = time.monotonic() + timeout
        else:
            time.sleep(0.005)
    out, err = map(_drain, started.output)
    return Done(next((code for code in codes if code != 0), 0), out, err)


def _drain(pipe: int) -> str:
    """What was printed. A process that outlives its parent may still hold the other end, so this does not wait for it."""
    text = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(pipe, PRINTED):
            text += part
    os.close(pipe)
    return text.decode(errors="replace")


def _any(children: set[int]) -> tuple[int, int]:
    for child in children:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return found, status
    return 0, 0


def run(args: Sequence[str], cwd: Path, ranks: int = 1, limits: Limits = NO_LIMITS) -> Done:
    """The result of a command."""
    return wait(start(args, cwd, ranks, limits))


def attempt(
    tries: Sequence[tuple[str, Callable[[], object]]], named: Sequence[str] = (), seconds: float = TIMEOUT
) -> list[Verdict]:
    """The verdicts on functions that are called one after the other in a forked process.

    A function that returns is right; a ValueError or OSError is a refusal, whose message should have the text in `named`. When
    one crashes or hangs, that is its verdict, and the next are called in another process.
    """
    verdicts: list[Verdict] = []
    while len(verdicts) < len(tries):
        first = len(verdicts)
        rest = list(zip(tries[first:], named[first:] or [""] * (len(tries) - first), strict=True))
        found, how = _in_child(rest, seconds)
        verdicts += found
        if len(verdicts) < len(tries):
            verdicts.append(wrong(f"{tries[len(verdicts)][0]}: {how}"))
    return verdicts


def _in_child(tries: Sequence[tuple[tuple[str, Callable[[], object]], str]], seconds: float) -> tuple[list[Verdict], str]:
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _call_all(tries, writing, int(seconds))
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:  # noqa: PTH123 - a descriptor
        lines = [json.loads(line) for line in pipe if line.endswith("\n")]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    how = f"no answer after {seconds:.0f} s" if status == -signal.SIGALRM else f"the process ended with {status}"
    return [Verdict(Outcome(kind), detail) for kind, detail in lines], how


def _call_all(tries: Sequence[tuple[tuple[str, Callable[[], object]], str]], writing: int, seconds: int) -> NoReturn:
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for (what, act), named in tries:
        signal.alarm(seconds)
        try:
            act()
            verdict = Verdict(Outcome.RIGHT)
        except SystemExit:
            verdict = Verdict(Outcome.RIGHT)  # --help
        except AssertionError as error:
            verdict = wrong(f"{what}: {error}")
        except BaseException as error:
            verdict = judge_error(error, what, named)
        os.write(writing, (json.dumps([verdict.outcome.value, verdict.detail]) + "\n").encode())
    os._exit(0)
