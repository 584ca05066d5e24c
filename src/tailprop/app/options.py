"""Options of `tailprop app`, which are parsed without PyTorch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tailprop.utils.validation import check_at_least, check_between

__all__ = ["App"]


@dataclass(frozen=True)
class App:
    """Open a web page on this machine: the operator, trained models, restoration, and runs while they train.

    It listens on 127.0.0.1 only, works without a network, and uploads nothing.
    """

    run: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]")] = ()
    """Run folders, weights files, or patterns like "runs/*/seed*", besides those below --runs."""
    runs: Path = Path("runs")
    """Folder that is searched for run folders, again whenever the page lists them."""
    images: Path | None = None
    """Folder of images over which gates are compared; none = scikit-image's photographs."""
    port: int = 0
    """Port to listen on; 0 = one that is free."""
    browser: bool = True
    """Open the page in a browser."""
    threads: int = 0
    """CPU threads of a model; 0 = PyTorch's default."""

    def check(self) -> None:
        check_between("--port", self.port, 0, 65535)
        check_at_least("--threads", self.threads, 0)
        if self.images is not None and not self.images.is_dir():
            raise ValueError(f"no folder {self.images}; give a folder of images with --images")
        if self.runs != App.runs and not self.runs.is_dir():
            raise ValueError(f"no folder {self.runs}; give a folder that has run folders in it with --runs")
