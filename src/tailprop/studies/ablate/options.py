"""Options of `tailprop ablate`, which are parsed without PyTorch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tailprop.utils.validation import check_at_least, check_output_folder

__all__ = ["Ablate"]


@dataclass(frozen=True)
class Ablate:
    """Train the variants of a study from several seeds, and compare them."""

    study: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STUDY")]
    """A YAML file with recipes, variants and seeds, or the name of a shipped study, for example reach or mixers."""
    out: Path
    """Folder for runs, tables and figures."""
    recipe: tuple[str, ...] = ()
    """Recipes, instead of those of the study."""
    variants: tuple[str, ...] = ()
    """Train these variants of the study alone."""
    seeds: tuple[int, ...] = ()
    """Seeds, instead of those of the study."""
    jobs: int = 0
    """Runs at a time; 0 = one per GPU, without GPUs one per core, or per `threads` cores."""
    threads: int = 0
    """CPU threads of each run; 0 = 1, with GPUs a share of the cores."""
    dry_run: bool = False
    """Print the plan and the time it will take, and train nothing."""

    def check(self) -> None:
        check_at_least("--jobs", self.jobs, 0)
        check_at_least("--threads", self.threads, 0)
        check_output_folder("--out", self.out)
