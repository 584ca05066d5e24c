"""A small part of the campaign, and the judgement itself. `make campaign` runs all of it for two hours."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tailprop.tasks import TASKS
from tests.campaign import __main__ as campaign
from tests.campaign.mutate import flip_bit, mutate_bytes, mutate_value, places
from tests.campaign.outcomes import Outcome, Tally, Verdict, judge_error, judge_exit, wrong
from tests.campaign.processes import attempt
from tests.helpers import ROOT


def run_slice(tmp_path: Path, *args: str) -> dict[str, list[int]]:
    """The rows of the table of one round of some attacks, in a process that has computed nothing, as forks need it."""
    command = [sys.executable, "-m", "tests.campaign", "--seed", "3", "--minutes", "0", "--keep", str(tmp_path / "kept"), *args]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.rsplit(maxsplit=4) for line in done.stdout.splitlines()[1:]]
    return {name.strip(): list(map(int, counts)) for name, *counts in rows}


def test_slice_of_the_attacks(tmp_path: Path) -> None:
    names = [
        "kills",
        "flipped bits",
        "full disk",
        "COCO json",
        "label maps",
        "parquet",
        "recipes",
        "command lines",
        "checkpoints",
    ]
    rows = run_slice(tmp_path, "--tasks", "classify", "--only", *names)
    assert list(rows) == names
    for tried, right, refused, failed in rows.values():
        assert tried == right + refused > 0
        assert failed == 0
    assert sum(tried for tried, *_ in rows.values()) > 150
    assert rows["recipes"][2] > 0


def test_hostile_names_and_images_of_every_task(tmp_path: Path) -> None:
    """ESC[2J and U+202E as class, category, file, folder, option and value; PostScript, pipes and links as images."""
    names = ["images", "names"]
    rows = run_slice(tmp_path, "--rounds", str(len(TASKS)), "--only", *names)
    assert rows["names"][0] >= 8 * len(TASKS)
    assert rows["names"][1] > len(TASKS)  # some commands succeed, and print the names
    assert rows["images"][2] >= 4 * len(TASKS)


def test_wrong_outcomes_are_told_and_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def act(*_: object) -> list[Verdict]:
        return [Verdict(Outcome.RIGHT), wrong("exit -11")]

    monkeypatch.setattr(campaign, "ATTACKS", {"kills": campaign.Attack(act, 1)})
    monkeypatch.setattr(campaign, "prepare", lambda *_: None)
    assert campaign.main(["--minutes", "0", "--keep", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert ["kills", "2", "1", "0", "1"] in [line.split() for line in out.splitlines()]
    assert "kills, round 0 (classify): exit -11" in out


@pytest.mark.parametrize(
    ("code", "err", "is_right", "expected"),
    [
        (0, "", True, Outcome.RIGHT),
        (0, "skipped a.png: not an image\n", True, Outcome.RIGHT),
        (0, "", False, Outcome.WRONG),  # another answer
        (2, "tailprop: a.pt is corrupt\n", False, Outcome.REFUSED),
        (2, "tailprop: a\ntailprop: b\n", False, Outcome.WRONG),
        (2, "", False, Outcome.WRONG),  # nothing is said
        (1, "Traceback (most recent call last):\n", False, Outcome.WRONG),
        (2, "tailprop: a\x1b[2J\n", False, Outcome.WRONG),
        (-11, "", False, Outcome.WRONG),
        (124, "", False, Outcome.WRONG),
    ],
)
def test_judgement_of_commands(code: int, err: str, is_right: bool, expected: Outcome) -> None:
    assert judge_exit(code, err, is_right, "x").outcome is expected


def test_judgement_of_errors() -> None:
    assert judge_error(ValueError("a.json is not valid json"), "x", "a.json").outcome is Outcome.REFUSED
    assert judge_error(ValueError("not valid json"), "x", "a.json").outcome is Outcome.WRONG
    assert judge_error(KeyError("a.json"), "x", "a.json").outcome is Outcome.WRONG


def test_crashes_and_hangs_are_wrong_and_the_next_try_follows() -> None:
    def crash() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def hang() -> None:
        signal.pause()

    def refuse() -> None:
        raise ValueError("a.png: not an image")

    verdicts = attempt([("a", crash), ("b", refuse), ("c", hang), ("d", lambda: None)], seconds=1)
    assert [verdict.outcome for verdict in verdicts] == [Outcome.WRONG, Outcome.REFUSED, Outcome.WRONG, Outcome.RIGHT]
    assert "the process ended with -9" in verdicts[0].detail
    assert "no answer after 1 s" in verdicts[2].detail


def test_mutations_change_something_and_depend_on_the_seed_alone() -> None:
    data, value = bytes(range(200)), {"a": [1, 2, {"b": "c"}], "d": None}
    assert sum(a != b for a, b in zip(flip_bit(data, Random(0)), data, strict=True)) == 1
    assert sum(mutate_bytes(data, Random(k)) != data for k in range(50)) > 45
    assert [mutate_bytes(data, Random(k)) for k in range(5)] == [mutate_bytes(data, Random(k)) for k in range(5)]
    assert value == {"a": [1, 2, {"b": "c"}], "d": None}
    assert len({repr(mutate_value(value, random.Random(k))) for k in range(30)}) > 20
    assert places(value) == [(), ("a",), ("a", 0), ("a", 1), ("a", 2), ("a", 2, "b"), ("d",)]


def test_details_are_kept_for_wrong_outcomes_only() -> None:
    tally = Tally("x")
    tally.add(Verdict(Outcome.RIGHT), "a")
    tally.add(wrong("exit 1"), "b")
    assert (tally.details, tally.cells()) == (["b: exit 1"], ["x", "2", "1", "0", "1"])
