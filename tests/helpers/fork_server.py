"""Start `tailprop`, or a script, in processes forked from one that has imported everything but computed nothing.

Importing PyTorch and timm takes longer than most tests, and a process with running thread pools cannot be forked safely. A
request is a line of JSON on standard input, the response a line of JSON on standard output.
"""

import json
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import tailprop.commands.train
import tailprop.engine.launch
import tailprop.tasks.classify.evaluate
import tailprop.tasks.classify.task
import tailprop.tasks.detect.task
import tailprop.tasks.restore.task
import tailprop.tasks.segment.task  # noqa: F401 - imported before the forks
import tailprop_cli


def serve() -> None:
    for line in sys.stdin:
        print(json.dumps(_run(**json.loads(line))), flush=True)


def _run(args: list[str], processes: int, script: str | None, timeout: float) -> dict[str, Any]:
    with TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        said = [Path(folder) / name for name in ("stdout", "stderr")]
        world = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        children = set()
        for rank in range(processes):
            places = {"RANK": str(rank), "LOCAL_RANK": str(rank), **world} if processes > 1 else {}
            child = os.fork()
            if child == 0:
                _become(args, script, places, said)
            children.add(child)
        code = _wait(children, timeout)
        return {"returncode": code, "stdout": said[0].read_text(), "stderr": said[1].read_text()}


def _become(args: list[str], script: str | None, places: dict[str, str], said: list[Path]) -> NoReturn:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(said, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(places)
    sys.argv = [script or "tailprop", *args]
    code: Any = 1
    try:
        code = tailprop_cli.main(args) if script is None else runpy.run_path(script, run_name="__main__") and 0
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _wait(children: set[int], timeout: float) -> int:
    """The first nonzero exit code; the other processes are then stopped, as torchrun does."""
    code, deadline = 0, time.monotonic() + timeout
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        children.discard(child)
        if child != 0 and status != 0 and code == 0:
            code, deadline = os.waitstatus_to_exitcode(status), time.monotonic() + 10
            _signal(children, signal.SIGTERM)
        elif time.monotonic() > deadline:
            code = code or 124
            _signal(children, signal.SIGKILL)
        time.sleep(0 if child else 0.01)
    return code


def _signal(children: set[int], number: int) -> None:
    for child in children:
        os.kill(child, number)


if __name__ == "__main__":
    serve()
