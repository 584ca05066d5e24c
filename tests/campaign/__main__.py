"""Attack the package for a time, and print a table of what was tried and what came of it.

    python -m tests.campaign --seed 0 --minutes 120          everything, round after round
    python -m tests.campaign --seed 0 --only "flipped bits" --round 17 --minutes 0    one round again

Every round has a seed of its own, made of the campaign's seed, the name of the attack and the number of the round. The exit
code is 1 if any outcome was wrong.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import torch
from PIL import Image

from tailprop.tasks import TASKS, find_spec
from tests.campaign import attack_files, attack_runs, attack_texts
from tests.campaign.outcomes import Outcome, Tally, Verdict
from tests.campaign.subjects import Subject, prepare
from tests.campaign.table import Report, print_table, write_table

__all__ = ["ATTACKS", "Plan", "campaign", "main"]

# what a command imports when it needs it
LATE: Final = (
    "imagecodecs._png",
    "imagecodecs._shared",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "tailprop.commands.eval",
    "tailprop.commands.predict",
    "tailprop.commands.train",
    "tailprop.tasks.common.pages",
    "typeguard",
)
Act = Callable[[Subject, Random, Path], Iterator[Verdict]]


class Attack(NamedTuple):
    """An attack on some tasks, which it takes in turns; `goal` is the number of tries of two hours on half a core."""

    act: Act
    goal: int
    tasks: tuple[str, ...] = TASKS


ATTACKS: Final[dict[str, Attack]] = {
    "kills": Attack(attack_runs.kill_at_random, 110),
    "kills of two processes": Attack(attack_runs.kill_two_ranks, 24),
    "flipped bits": Attack(attack_runs.flip_bits, 550),
    "full disk": Attack(attack_runs.fill_disk, 220),
    "leaks": Attack(attack_runs.look_for_leaks, 45),
    "logs": Attack(attack_runs.mutate_logs, 2200),
    "images": Attack(attack_files.mutate_images, 2500),
    "COCO json": Attack(attack_files.mutate_coco, 2200, ("detect",)),
    "label maps": Attack(attack_files.mutate_labels, 2200, ("segment",)),
    "parquet": Attack(attack_files.mutate_parquet, 2200, ("classify",)),
    "recipes": Attack(attack_texts.mutate_recipes, 2200),
    "command lines": Attack(attack_texts.mutate_commands, 2200),
    "checkpoints": Attack(attack_texts.hostile_checkpoints, 2200),
    "names": Attack(attack_texts.hostile_names, 220),
}


@dataclass(frozen=True)
class Plan:
    """What is attacked, and for how long."""

    seed: int = 0
    minutes: float = 10.0
    rounds: int = 1  # of each attack, at least
    first: int = 0  # number of the first round
    only: Sequence[str] = ()  # names of attacks; none = all
    tasks: Sequence[str] = TASKS
    table: Path | None = None  # saved as the campaign goes on


def campaign(root: Path, plan: Plan) -> list[Tally]:
    """Run rounds of the attacks until the time is over; the one that is furthest from its goal is next."""
    _import_everything()
    tallies = [Tally(name) for name in ATTACKS if not plan.only or name in plan.only]
    subjects: dict[str, Subject] = {}
    report, end = Report(plan.table), time.monotonic() + 60 * plan.minutes
    while left := [tally for tally in tallies if time.monotonic() < end or tally.rounds < plan.rounds]:
        tally = min(left, key=_progress)
        began = time.monotonic()
        _one_round(root, plan, tally, subjects)
        tally.rounds += 1
        tally.seconds += time.monotonic() - began
        report.update(tallies)
    if plan.table is not None:
        write_table(plan.table, tallies)
    return tallies


def _progress(tally: Tally) -> tuple[int, float]:
    """Every attack has a round first; some rounds have no try."""
    return min(tally.rounds, 1), tally.counts.total() / ATTACKS[tally.name].goal


def _import_everything() -> None:
    """Before the forks; nothing is computed with PyTorch, so that no thread is running when a child is forked."""
    torch.set_num_threads(1)
    Image.init()
    for name in LATE:
        import_module(name)
    for spec in map(find_spec, TASKS):
        for part in (spec.task, spec.load, spec.evaluate, spec.predict):
            spec.part(part)


def _one_round(root: Path, plan: Plan, tally: Tally, subjects: dict[str, Subject]) -> None:
    name, number = tally.name, plan.first + tally.rounds
    own = [task for task in ATTACKS[name].tasks if task in plan.tasks] or list(ATTACKS[name].tasks)
    task = own[number % len(own)]
    if task not in subjects:
        subjects[task] = prepare(task, root)
    where, work = f"{name}, round {number} ({task})", root / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    found = list(ATTACKS[name].act(subjects[task], Random(f"{plan.seed} {name} {number}"), work))
    for verdict in found:
        tally.add(verdict, where)
    if any(verdict.outcome is Outcome.WRONG for verdict in found):
        shutil.copytree(work, root / "wrong" / f"{name} {number}".replace(" ", "_"), symlinks=True, ignore=_special_files)


def _special_files(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (Path(folder, name).is_file() or Path(folder, name).is_dir())]


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", nargs="*", default=[], choices=list(ATTACKS), help="names of attacks")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of each attack, at least")
    parser.add_argument("--round", type=int, default=0, help="the first round of each attack, to repeat it")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--keep", type=Path, help="folder for the files of wrong outcomes; default: a temporary one")
    parser.add_argument("--table", type=Path, help="a CSV file for the counts, saved every minute")
    given = parser.parse_args(args)
    root = given.keep or Path(tempfile.mkdtemp(prefix="campaign"))
    plan = Plan(given.seed, given.minutes, given.rounds, given.round, given.only, given.tasks, given.table)
    tallies = campaign(root.resolve(), plan)
    print_table(tallies)
    is_wrong = any(tally.counts[Outcome.WRONG] for tally in tallies)
    if is_wrong:
        print(f"the files of wrong outcomes are in {root / 'wrong'}")
    elif given.keep is None:
        shutil.rmtree(root, ignore_errors=True)
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
