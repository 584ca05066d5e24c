"""`tailprop ablate STUDY`: train recipe x variant x seed from matched initial weights, and compare the variants.

DIR/runs/RECIPE/VARIANT/seedK   ordinary run folders, resumed by the same command
DIR/rows.csv                    a row for every finished run, with the hash of its settings; a run with a row is not repeated
DIR/summary.csv, summary.md     mean, spread and paired differences of the variants
DIR/curves.png, learned.png     metrics, lengths and mixing weights by epoch
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.markdown import Markdown

from tailprop.engine.run_folder import RunFolder
from tailprop.engine.run_settings import check_unchanged, read_config
from tailprop.studies.ablate.estimate import print_plan
from tailprop.studies.ablate.figures import draw_figures
from tailprop.studies.ablate.options import Ablate
from tailprop.studies.ablate.rows import Row, done_rows, read_rows, row_of, save_rows
from tailprop.studies.ablate.runner import Runner, machine_for
from tailprop.studies.ablate.study import Run, find_study, plan_runs, read_study
from tailprop.studies.ablate.summary import write_summary
from tailprop.utils.parsing import read_text
from tailprop.utils.terminal import Console
from tailprop.utils.text import did_you_mean, printable, say

_BETWEEN_FIGURES = 60.0  # seconds


def run(options: Ablate) -> int:
    options.check()
    study = read_study(find_study(options.study), options.recipe, options.seeds)
    runs = plan_runs(study, options.out)
    chosen = _of_variants(runs, options.variants or tuple(study.variants))
    table = Results(options.out, runs)
    todo = [run for run in chosen if run.name not in table.done]
    _check_folders(todo)
    machine = machine_for(chosen, options.jobs, options.threads)
    if options.dry_run:
        print_plan(chosen, table.done, machine)
        return 0
    with _locked(options.out):
        say(f"{len(chosen)} runs, {len(chosen) - len(todo)} done, {len(todo)} to do, {machine}; {options.out}", flush=True)
        runner = Runner(todo, machine, table.add)
        try:
            runner.run()
        finally:
            table.write(figures=True)
    _report(options.out, runner.failures)
    return 1 if runner.failures else 0


def _of_variants(runs: Sequence[Run], names: Sequence[str]) -> list[Run]:
    known = list(dict.fromkeys(run.variant for run in runs))
    for name in names:
        if name not in known:
            raise ValueError(f"the study has no variant {name!r}; {did_you_mean(name, known)}")
    return [run for run in runs if run.variant in names]


def _check_folders(runs: Sequence[Run]) -> None:
    """Raise if a run folder belongs to earlier settings of the study."""
    for run in runs:
        if (run.folder / "config.yaml").exists():
            try:
                check_unchanged(read_config(run.folder), run.config, run.folder)
            except ValueError as error:
                reason = str(error).partition(";")[0]
                raise ValueError(f"{reason}; remove it, or choose another --out") from None


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lock the folder of the study against a second process."""
    out.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(out)
    try:
        folder.acquire()
    except ValueError:
        raise ValueError(f"another tailprop ablate is running in {out}; wait for it, or choose another --out") from None
    try:
        yield
    finally:
        folder.release()


class Results:
    """The tables of a study, written again after every finished run."""

    def __init__(self, out: Path, runs: Sequence[Run]) -> None:
        self.out, self.runs = out, runs
        self.rows = read_rows(out / "rows.csv")
        self.drawn = time.monotonic()

    @property
    def done(self) -> dict[str, Row]:
        return done_rows(self.rows, self.runs)

    def add(self, run: Run) -> str:
        """Add a finished run; returns its result in a few words."""
        row = row_of(run)
        self.rows.append(row)
        save_rows(self.out / "rows.csv", self.rows, self.runs)
        self.write(figures=time.monotonic() - self.drawn > _BETWEEN_FIGURES)
        return f"{row['metric']} {float(row['value']):.2f}, {float(row['seconds']) / 60:.1f} min"

    def write(self, figures: bool) -> None:
        write_summary(self.out, self.runs, self.done)
        if figures:
            draw_figures(self.out, self.runs)
            self.drawn = time.monotonic()


def _report(out: Path, failures: dict[str, str]) -> None:
    summary = out / "summary.md"
    if summary.exists():
        Console().print(Markdown("\n".join(map(printable, read_text(summary).splitlines()))))
        say(f"written: {', '.join(str(out / name) for name in ('rows.csv', 'summary.csv', 'summary.md'))}")
    for name, line in failures.items():
        say(f"tailprop: {name} failed: {line}", error=True)
