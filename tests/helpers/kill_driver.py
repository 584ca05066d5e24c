"""Kill a training run several times, then let it finish. Started by test_resume in a new interpreter.

The children are forked from a process that has imported everything but computed nothing, so that ten of them start in the time
of one, and no running thread pool is forked.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import tailprop.commands.train
import tailprop.engine.launch
import tailprop.tasks.classify.task  # noqa: F401 - imported before the forks
import tailprop_cli


def start(recipe: str, out: Path) -> int:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(tailprop_cli.main(["train", recipe, "--run.out", str(out), "--run.resume"]))
    return child


def is_alive(child: int) -> bool:
    return os.waitpid(child, os.WNOHANG) == (0, 0)


def count_lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def kill_at_random(recipe: str, out: Path, rng: random.Random) -> bool:
    """Kill the run at a random point within the next four steps; returns whether it was still running."""
    log = out / "metrics.jsonl"
    before, steps = count_lines(log), rng.randint(-1, 4)
    child = start(recipe, out)
    time.sleep(rng.uniform(0.0, 0.5) if steps < 0 else 0.0)  # -1: while it starts
    while count_lines(log) < before + steps:
        time.sleep(rng.uniform(0.0, 0.02))
        if not is_alive(child):
            return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def kill_while_writing(recipe: str, out: Path, skip: int) -> bool:
    """Kill the run while a checkpoint is being written; returns whether that succeeded."""
    child, part, seen = start(recipe, out), out / "last.pt.part", 0
    while is_alive(child):
        if part.exists():
            seen += 1
            if seen > skip:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return True
            while part.exists():
                pass
    return False


def main() -> None:
    recipe, folder = sys.argv[1], Path(sys.argv[2])
    rng, kills = random.Random(0), 0
    for k in range(5):
        kills += kill_at_random(recipe, folder, rng)
        kills += kill_while_writing(recipe, folder, skip=k % 2)
    child = start(recipe, folder)
    _, status = os.waitpid(child, 0)
    print(f"kills {kills}, exit {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
