"""Attacks on runs: kills at random moments, flipped bits in every file, full disks, leaks."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.campaign.mutate import flip_bit
from tests.campaign.outcomes import RIGHT, Verdict, judge_exit, wrong
from tests.campaign.processes import Done, Started, attempt, is_running, run, start, stop, wait
from tests.campaign.subjects import Subject, digest, digest_of_run, epochs_logged

__all__ = ["fill_disk", "flip_bits", "kill_at_random", "kill_two_ranks", "look_for_leaks"]

KILLS = 4  # of each run


def kill_at_random(subject: Subject, rng: Random, work: Path, ranks: int = 1) -> Iterator[Verdict]:
    """Kill a run several times, resume it to the end, and compare. Every kill is a try."""
    out, kills = work / "run", 0
    for _ in range(KILLS):
        started = start(subject.train(out), subject.home, ranks)
        _wait_a_moment(started, out, rng)
        kills += is_running(started)
        stop(started)
        done = wait(started)
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


def _wait_a_moment(started: Started, out: Path, rng: Random) -> None:
    """A random moment, one soon after a line of the log, or one while a file is written."""
    kind, deadline = rng.randrange(3), time.monotonic() + 60
    if kind == 0:
        time.sleep(rng.uniform(0, 3))
        return
    log, lines = out / "metrics.jsonl", rng.randint(1, 8)
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
    used = [name for name in names if name.suffix in (".pt", ".safetensors", ".yaml", ".json", ".jsonl")]
    path = folder / rng.choice(used if rng.random() < 0.8 else names)
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
    limit = int(2 ** rng.uniform(12, 21))  # at least what standard error needs, which is a file here
    if kind in ("train", "resume"):
        out = work / "run" if kind == "train" else subject.stopped(work / "run")
        done = run(subject.train(out), subject.home, largest_file=limit)
        verdict = _judge_full(done, f"{kind}, {limit} bytes")
        after = run(subject.train(out), subject.home)
        same = after.code == 0 and digest_of_run(out) == subject.result
        yield verdict if same else wrong(f"{kind}, {limit} bytes, then resumed: exit {after.code}: {after.err[-600:]}")
        return
    out = work / "out"
    args = subject.predict(subject.whole, subject.image, out) if kind == "predict" else subject.evaluate(subject.whole, out)
    yield _judge_full(run(args, subject.home, largest_file=limit), f"{kind}, {limit} bytes")


def _judge_full(done: Done, what: str) -> Verdict:
    verdict = judge_exit(done.code, done.err, True, what)
    if done.code == 2 and "cannot write" not in done.err:
        return wrong(f"{what}: the message does not name a file that cannot be written: {done.err[-300:]}")
    return verdict


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

    yield from attempt([(f"leaks of {subject.task}", predict_many)], seconds=300)
    shared = set(os.listdir("/dev/shm"))  # noqa: PTH208
    done = run([*subject.train(work / "run"), "--data.workers", "2"], subject.home)
    left = set(os.listdir("/dev/shm")) - shared  # noqa: PTH208
    own = {name for name in left if "torch" in name}
    yield judge_exit(done.code, done.err, not own, f"left in /dev/shm: {own}")


def _predict(loaded: object, sizes: list[tuple[int, int]]) -> None:
    import torch

    for height, width in sizes:
        loaded.predict(torch.rand(3, height, width))  # type: ignore[attr-defined]


def _resources() -> tuple[int, int, float]:
    """Open descriptors, entries of /dev/shm, and resident memory in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    shared = sum("torch" in name for name in os.listdir("/dev/shm"))  # noqa: PTH208
    return len(list(Path("/proc/self/fd").iterdir())), shared, pages * os.sysconf("SC_PAGE_SIZE")
