"""The log of a run: lines in metrics.jsonl, and the same numbers as TensorBoard events and for a tracker."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tailprop.engine.run_folder import RunFolder
from tailprop.engine.tracking import SafeTracker
from tailprop.utils.files import explain_write_errors

__all__ = ["MetricsLog", "open_metrics_log"]


class MetricsLog:
    """The log of a run; with `kept` false, as on every rank but 0, it writes nothing."""

    def __init__(self, folder: RunFolder, kept: bool, events: Any = None, tracker: SafeTracker | None = None) -> None:
        self.folder, self.kept, self.events, self.tracker = folder, kept, events, tracker

    def write(self, row: dict[str, Any]) -> None:
        """Write a row, which has a `kind` and the global `step`."""
        if not self.kept:
            return
        self.folder.log(row)
        if self.tracker is not None:
            self.tracker.log(row)
        if self.events is None:
            return
        with explain_write_errors(self.folder.tensorboard):
            for name, value in row.items():
                if isinstance(value, float):
                    self.events.add_scalar(f"{row['kind']}/{name}", value, row["step"])


@contextmanager
def open_metrics_log(
    folder: RunFolder, kept: bool, tensorboard: bool, step: int, tracker: SafeTracker | None = None
) -> Iterator[MetricsLog]:
    """Open the log of a run at `step`; later TensorBoard events, left by a process that died, are purged."""
    events = None
    if kept and tensorboard:
        from torch.utils.tensorboard import SummaryWriter

        with explain_write_errors(folder.tensorboard):
            events = SummaryWriter(str(folder.tensorboard), purge_step=step + 1)
    try:
        yield MetricsLog(folder, kept, events, tracker)
    finally:
        if tracker is not None:
            tracker.finish()
        if events is not None:
            with explain_write_errors(folder.tensorboard):
                events.close()
