"""Attacks on runs: kills at random moments, flipped bits in every file, full disks, leaks."""

import contextlib
import json
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tests.campaign.mutate import HOSTILE, flip_bit, mutate_bytes, mutate_value
from tests.campaign.outcomes import RIGHT, Verdict, judge_exit, wrong
from tests.campaign.processes import Done, Started, attempt, is_running, run, start, stop, wait
from tests.campaign.subjects import Subject, digest, digest_of_run, epochs_logged

__all__ = ["fill_disk", "flip_bits", "kill_at_random", "kill_two_ranks", "look_for_leaks", "mutate_logs"]

KILLS = 4  # of each run
FILES = 40  # mutated logs of a round
EPOCHS = 16  # of a training whose memory is observed


def kill_at_random(subject: Subject, rng: Random, work: Path, ranks: int = 1) -> Iterator[Verdict]:
    """Kill a run until it is done, resume it, and compare. Every kill is a try."""
    out, kills = work / "run", 0
    for _ in range(KILLS):
        started = start(subject.train(out), subject.home, ranks)
        _wait_a_moment(started, out, rng, subject.seconds * ranks)
        was_killed = is_running(started)
        stop(started)
        done = wait(started)
        kills += was_killed
        if not was_killed:
            break
        if done.code not in (0, -9) and ranks == 1:
            yield wrong(f"before a kill: exit {done.code}: {done.err[-600:]}")
    done = run(subject.train(out), subject.home, ranks)
    same = done.code == 0 and (digest_of_run(out) == subject.result or (ranks > 1 and _has_finished(out, subject)))
    verdict = RIGHT if same else wrong(f"{kills} kills: exit {done.code} or other weights: {done.err[-600:]}")
    for _ in range(kills):
        yield verdict


def _has_finished(out: Path, subject: Subject) -> bool:
    """With two processes, whose batches are others: whether both epochs are logged once, and a run without kills agrees."""
    reference = subject.home / "two"
    if not reference.exists():
        run(subject.train(reference), subject.home, ranks=2)
    return epochs_logged(out) == 2 and digest_of_run(out) == digest_of_run(reference)


def _wait_a_moment(started: Started, out: Path, rng: Random, seconds: float) -> None:
    """A random moment of a run that takes so many seconds, one soon after a line of the log, or one while a file is written."""
    kind, deadline = rng.randrange(3), time.monotonic() + 60
    if kind == 0:
        time.sleep(rng.uniform(0, 0.8 * seconds))
        return
    log, lines = out / "metrics.jsonl", rng.randint(1, 4)
    before = _count(log)
    while is_running(started) and time.monotonic() < deadline:
        if kind == 1 and _count(log) >= before + lines:
            break
        if kind == 2 and _count(log) > before and any(out.glob("*.part")):
            break
        time.sleep(0.0005)
    time.sleep(rng.choice((0, 0, 0.001, 0.01, 0.1)))


def _count(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def kill_two_ranks(subject: Subject, rng: Random, work: Path) -> Iterator[Verdict]:
    yield from kill_at_random(subject, rng, work, ranks=2)


def flip_bits(subject: Subject, rng: Random, work: Path) -> Iterator[Verdict]:
    """Flip a bit in a file of a run; resume it, or predict with it. The answer is the same, or refused in one line."""
    resumes = rng.random() < 0.5
    folder = subject.stopped(work / "run") if resumes else Path(shutil.copytree(subject.whole, work / "run"))
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 0)
    path = folder / rng.choice(names)
    path.write_bytes(flip_bit(path.read_bytes(), rng))
    if resumes:
        done = run(subject.train(folder), subject.home)
        yield judge_exit(
            done.code, done.err, done.code == 0 and digest_of_run(folder) == subject.result, f"{path.name}, resumed"
        )
        return
    out = work / "answer"
    done = run(subject.predict(folder, subject.image, out), subject.home)
    yield judge_exit(done.code, done.err, done.code == 0 and digest(out) == subject.answer, f"{path.name}, predicted")


def fill_disk(subject: Subject, rng: Random, work: Path) -> Iterator[Verdict]:
    """No file may become larger than a random size. A command that meets it names the file; nothing saved before is lost."""
    kind = rng.choice(("train", "resume", "predict", "eval"))
    sizes = [path.stat().st_size for path in subject.whole.rglob("*") if path.is_file()]
    limit = rng.randrange(max(1, rng.choice(sizes)))  # between 0 and the size of a file of a run
    if kind in ("train", "resume"):
        out = work / "run" if kind == "train" else subject.stopped(work / "run")
        done = run(subject.train(out), subject.home, limits={resource.RLIMIT_FSIZE: limit})
        verdict = _judge_full(done, f"{kind}, {limit} bytes")
        after = run(subject.train(out), subject.home)
        same = after.code == 0 and digest_of_run(out) == subject.result
        yield verdict if same else wrong(f"{kind}, {limit} bytes, then resumed: exit {after.code}: {after.err[-600:]}")
        return
    out = work / "out"
    args = subject.predict(subject.whole, subject.image, out) if kind == "predict" else subject.evaluate(subject.whole, out)
    yield _judge_full(run(args, subject.home, limits={resource.RLIMIT_FSIZE: limit}), f"{kind}, {limit} bytes")


def _judge_full(done: Done, what: str) -> Verdict:
    verdict = judge_exit(done.code, done.err, True, what)
    if done.code == 2 and "cannot write" not in done.err:
        return wrong(f"{what}: the message does not name a file that cannot be written: {done.err[-300:]}")
    return verdict


def mutate_logs(subject: Subject, rng: Random, work: Path) -> Iterator[Verdict]:
    """Mutated logs and manifests of a stopped run: they never block it. One run of them is resumed to its end."""
    folder = subject.stopped(work / "run")
    names = ("metrics.jsonl", "manifest.json", "history.csv", "launch.txt")
    tries: list[tuple[str, Callable[[], object]]] = []
    for number in range(FILES):
        home, step = work / str(number), rng.randrange(8)
        home.mkdir()
        for name in names[:2]:
            home.joinpath(name).write_bytes(_mutated_log((folder / name).read_bytes(), rng))
        tries.append((f"log {number}", lambda home=home, step=step: _continue_log(home, step)))
    yield from attempt(tries)
    for name in names:
        (folder / name).write_bytes(
            _mutated_log((folder / name).read_bytes() if (folder / name).exists() else b"a,b\n1,2\n", rng)
        )
    done = run(subject.train(folder), subject.home)
    same = done.code == 0 and digest_of_run(folder) == subject.result
    yield (
        judge_exit(done.code, done.err, same, "resumed with other logs")
        if same
        else wrong(f"logs: exit {done.code}: {done.err}")
    )


def _mutated_log(data: bytes, rng: Random) -> bytes:
    """A changed line, or changed bytes."""
    if rng.random() < 0.5:
        return mutate_bytes(data, rng)
    lines = data.split(b"\n")
    place = rng.randrange(len(lines))
    try:
        lines[place] = json.dumps(mutate_value(json.loads(lines[place]), rng)).encode()
    except ValueError:
        lines[place] = json.dumps(rng.choice(HOSTILE)).encode()
    return b"\n".join(lines)


def _continue_log(home: Path, step: int) -> None:
    """What a resume does with the logs; afterwards both are well-formed."""
    from tailprop.engine.run_folder import RunFolder

    folder = RunFolder(home)
    try:
        manifest = folder.read_manifest()
        folder.rewind(step, step // 4)
        folder.write_manifest(manifest | {"continued": [*manifest.get("continued", []), {}]})
        rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    except (ValueError, OSError) as error:
        raise AssertionError(f"a log blocks its run: {error}") from error
    assert all(int(row["step"]) <= step for row in rows), "the log holds steps of the future"
    assert folder.read_manifest()["continued"], "the manifest was not written"


def look_for_leaks(subject: Subject, rng: Random, work: Path) -> Iterator[Verdict]:
    """Predict images of many sizes in one process: descriptors, shared memory and memory stay as they are."""

    def predict_many() -> None:
        import tailprop
        from tailprop.runtime.allocator import keep_freed_memory

        os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "128"
        keep_freed_memory()
        loaded = tailprop.load(subject.whole)
        sizes = [(rng.randrange(32, 160), rng.randrange(32, 160)) for _ in range(120)]
        _predict(loaded, [(160, 160), *sizes[:60]])
        before = _resources()
        _predict(loaded, sizes[60:])
        after = _resources()
        assert after[:2] == before[:2], f"descriptors and /dev/shm: {before[:2]} became {after[:2]}"
        assert after[2] - before[2] < 40e6, f"memory grew by {(after[2] - before[2]) / 1e6:.0f} MB over 60 images"

    yield from attempt([(f"leaks of {subject.task}", predict_many)])
    shared = set(os.listdir("/dev/shm"))  # noqa: PTH208
    started = start([*subject.train(work / "run"), "--data.workers", "2", "--optim.epochs", str(EPOCHS)], subject.home)
    early, late = _observe(started, work / "run")
    done = wait(started)
    if early and late:  # seen at all: a busy machine may not have let us look
        is_level = late[0] < early[0] + EPOCHS // 4 and late[1] < early[1] + 40e6
        yield RIGHT if is_level else wrong(f"descriptors and memory of a training: {early} in its middle, {late} near its end")
    left = {name for name in set(os.listdir("/dev/shm")) - shared if _is_abandoned(name)}  # noqa: PTH208
    yield judge_exit(done.code, done.err, not left, f"left in /dev/shm: {left}")


def _is_abandoned(name: str) -> bool:
    """Whether an entry of /dev/shm belongs to a process of PyTorch that has ended; other programs are at work, too."""
    parts = name.split("_")
    return parts[0] == "torch" and parts[1].isdigit() and not Path("/proc", parts[1]).exists()


def _observe(started: Started, out: Path) -> list[tuple[int, float] | tuple[()]]:
    """The descriptors at rest and the most memory of a training, in the quarter before its middle and in the last quarter.

    At rest: the fewest that were seen. Batches on their way from the workers hold some more, by chance.
    """
    seen: list[tuple[int, int, float]] = []
    while is_running(started):
        epochs = epochs_logged(out)
        with contextlib.suppress(OSError, IndexError):  # it ends meanwhile
            descriptors, _, memory = _resources(started.children[0])
            seen.append((epochs, descriptors, memory))
        time.sleep(0.02)
    quarters = [[s[1:] for s in seen if low <= s[0] / EPOCHS < low + 0.25] for low in (0.25, 0.75)]
    return [(min(q[0] for q in quarter), max(q[1] for q in quarter)) if quarter else () for quarter in quarters]


def _predict(loaded: object, sizes: list[tuple[int, int]]) -> None:
    import torch

    for height, width in sizes:
        loaded.predict(torch.rand(3, height, width))  # type: ignore[attr-defined]


def _resources(process: int | str = "self") -> tuple[int, int, float]:
    """Open descriptors, entries of /dev/shm, and resident memory in bytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    shared = sum(name.startswith(f"torch_{os.getpid()}_") for name in os.listdir("/dev/shm"))  # noqa: PTH208
    return len(list(Path(f"/proc/{process}/fd").iterdir())), shared, pages * os.sysconf("SC_PAGE_SIZE")
