"""Experiment trackers: what metrics.jsonl gets, sent to Trackio, Weights & Biases or MLflow.

A tracker may fail, or its server may be away, at any time. That is printed once, and the run continues without it.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from tailprop.utils.files import write_json
from tailprop.utils.parsing import parse_json, read_bytes
from tailprop.utils.text import say

__all__ = ["SafeTracker", "Tracker", "open_tracker"]

Settings = dict[str, Any]  # by dotted name


class Tracker(Protocol):
    """What a run asks of a tracker. `identity` is stored in the run folder, so that a resumed run continues the same record."""

    identity: str

    def log(self, values: dict[str, float], step: int) -> None: ...
    def finish(self) -> None: ...


class _Trackio:
    def __init__(self, project: str, name: str, before: str | None, settings: Settings, _folder: Path) -> None:
        self.module = import_module("trackio")
        how = dict(name=before or name, config=settings, resume="allow" if before else "never")
        self.identity = str(self.module.init(project=project, **how).name)  # it has changed if there is a run of that name

    def log(self, values: dict[str, float], step: int) -> None:
        self.module.log(values, step=step)

    def finish(self) -> None:
        self.module.finish()


class _Wandb:
    def __init__(self, project: str, name: str, before: str | None, settings: Settings, folder: Path) -> None:
        self.run = import_module("wandb").init(
            project=project, name=name, id=before, resume="allow" if before else None, config=settings, dir=str(folder)
        )
        self.identity = str(self.run.id)

    def log(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def finish(self) -> None:
        self.run.finish()


class _MLflow:
    def __init__(self, project: str, name: str, before: str | None, settings: Settings, _folder: Path) -> None:
        self.module = import_module("mlflow")
        self.module.set_experiment(project)
        run = self.module.start_run(run_id=before) if before else self.module.start_run(run_name=name)
        self.identity = str(run.info.run_id)
        if not before:  # parameters cannot be logged again with other values
            values = [(key, str(value)[:500]) for key, value in settings.items()]
            for first in range(0, len(values), 100):  # the most in one request
                self.module.log_params(dict(values[first : first + 100]))

    def log(self, values: dict[str, float], step: int) -> None:
        self.module.log_metrics(values, step=step)

    def finish(self) -> None:
        self.module.end_run()


TRACKERS: Final[dict[str, Callable[..., Tracker]]] = {"trackio": _Trackio, "wandb": _Wandb, "mlflow": _MLflow}


class SafeTracker:
    """A tracker whose failures are printed once and then ignored."""

    def __init__(self, name: str, open_it: Callable[[], Tracker]) -> None:
        self.name = name
        self.tracker: Tracker | None = None
        self._guard(lambda: setattr(self, "tracker", open_it()))

    def log(self, row: dict[str, Any]) -> None:
        """Send the numbers of a row of metrics.jsonl, each under its kind: step/loss, epoch/top1."""
        tracker, values = self.tracker, {f"{row['kind']}/{k}": v for k, v in row.items() if isinstance(v, float)}
        if tracker is not None and values:
            self._guard(lambda: tracker.log(values, int(row["step"])))

    def finish(self) -> None:
        if (tracker := self.tracker) is not None:
            self._guard(tracker.finish)

    def _guard(self, act: Callable[[], None]) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the tracker
                act()
        except (Exception, SystemExit) as error:
            self.tracker = None
            reason = " ".join(str(error).split())[:200]
            say(f"{self.name} failed ({type(error).__name__}: {reason}); the run continues without it", error=True)


def open_tracker(name: str, project: str, folder: Path, settings: dict[str, Any], is_new: bool) -> SafeTracker:
    """Open the record of a run, or for a resumed run the one it had; its id is kept in tracking.json."""
    path = folder / "tracking.json"
    before = None if is_new else _read_ids(path).get(name)

    def open_it() -> Tracker:
        tracker = TRACKERS[name](project, folder.absolute().name, before, _flat(settings), folder)
        if tracker.identity != before:
            write_json(path, {**({} if is_new else _read_ids(path)), name: tracker.identity})
        return tracker

    return SafeTracker(name, open_it)


def _read_ids(path: Path) -> dict[str, str]:
    """The ids by tracker; a file that cannot be read starts a new record."""
    with suppress(OSError, ValueError, AttributeError):
        return {str(name): str(value) for name, value in parse_json(read_bytes(path), path).items()}
    return {}


def _flat(settings: dict[str, Any], prefix: str = "") -> Settings:
    flat: Settings = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {prefix + name: value}
    return flat
