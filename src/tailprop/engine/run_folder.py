"""The run folder: settings, provenance, metrics, checkpoints and weights of a run.

config.yaml        all settings, resolved
manifest.json      command, versions, hardware, commit, hashes of settings and dataset, cost; an entry for each resume
metrics.jsonl      a line every few steps and after every epoch
history.csv        the epochs of a finished run as a table
last.pt, best.pt   checkpoints
model.safetensors  the best weights
config.json        what timm needs to create the network, for tasks whose weights are a network of timm
tensorboard/       TensorBoard events
tracking.json      ids of the run in experiment trackers
launch.txt         under torchrun, the id of the launch, so that its restarts resume automatically
.lock              locked while a process trains here
"""

import csv
import errno
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import yaml

from tailprop.engine.config import TaskConfig
from tailprop.engine.integrity import check_intact, is_intact
from tailprop.engine.run_settings import check_unchanged, read_config
from tailprop.engine.settings import absolute_paths, config_hash, to_dict
from tailprop.runtime.distributed import print_main
from tailprop.utils.files import PART, check_link, explain_write_errors, write_atomically, write_json, write_text
from tailprop.utils.parsing import parse_json, read_bytes, seal_row, seal_text, sealed_row
from tailprop.utils.text import counted, printable, say

try:
    import fcntl
except ImportError:  # not a POSIX system: run folders are not locked
    fcntl = None  # type: ignore[assignment]

__all__ = ["RunFolder"]

_HASH = "manifest_hash"  # of the other entries of the manifest
_HUB_HASH = "tailprop_hash"  # of the other entries of config.json


class RunFolder:
    """The paths of a run, its lock and its log. `artifacts` are the names of files that the task adds."""

    def __init__(self, path: Path, artifacts: Sequence[str] = ()) -> None:
        self.path, self.artifacts = path, [path / name for name in artifacts]
        self.config, self.manifest, self.metrics = path / "config.yaml", path / "manifest.json", path / "metrics.jsonl"
        self.last, self.best, self.weights = path / "last.pt", path / "best.pt", path / "model.safetensors"
        self.tensorboard, self.launch, self.history = path / "tensorboard", path / "launch.txt", path / "history.csv"
        self.lock, self.hub, self.tracking = path / ".lock", path / "config.json", path / "tracking.json"
        self._lock_file: IO[str] | None = None

    def check(self, config: TaskConfig) -> None:
        """Raise if the folder cannot be used: it holds another run, or is in use. Changes nothing in it."""
        resume, overwrite = config.run.resume, config.run.overwrite
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; name a folder with --run.out")
        self._check_kinds()
        if self.lock.exists():
            self.acquire()
        before = read_config(self.path) if self.config.exists() else None  # raises if config.yaml is not ours
        holds_run = any(path.exists() for path in self._files())
        if holds_run and not overwrite and not resume:
            raise ValueError(
                f"{self.path} holds a run; resume it (--run.resume), replace it (--run.overwrite) or change --run.out"
            )
        if resume and not self.last.exists() and (self.best.exists() or self.weights.exists()):
            raise ValueError(
                f"{self.last} is missing, so the run cannot resume, and a new run would replace the best weights; "
                "start from them in another folder (--model.init, --run.out), or replace them (--run.overwrite)"
            )
        if before is not None and resume:
            check_unchanged(before, config, self.path)

    def _check_kinds(self) -> None:
        """Raise if a file of the run is a pipe, a socket or a folder, or a link that leads nowhere and would create a file.

        Opening a pipe would wait for its other end. Checkpoints may be links to another disk before they exist.
        """
        for path in (self.lock, *self._files()):
            if path.exists() and (path.is_fifo() or path.is_socket() or path.is_dir()):
                raise ValueError(f"{path} is not a file; remove it, or change --run.out")
            if path not in (self.last, self.best, self.weights):
                check_link(path)

    def begin(self, config: TaskConfig, launch: str = "") -> None:
        """Prepare the folder. Called last, so that an error in the settings does not delete the old run."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from None
        self.acquire()
        for path in self._files():
            path.with_name(path.name + PART).unlink(missing_ok=True)  # left by a process that died
        if config.run.overwrite:
            self._remove()
        if launch:  # before config.yaml: if the process is killed in between, a restart must still recognize its run
            write_atomically(self.launch, lambda part: part.write_text(launch))
        # The file is also a recipe, so options of this launch alone are reset.
        launched = replace(config.run, resume=False, overwrite=False)
        kept = yaml.safe_dump(to_dict(absolute_paths(replace(config, run=launched))), sort_keys=False)
        write_text(self.config, seal_text(kept))

    def checkpoint_to_resume(self) -> Path | None:
        """The last checkpoint, or the best one if the last is corrupt: from there the run repeats the steps since."""
        if not self.last.exists():
            return None
        try:
            check_intact(self.last)
        except ValueError as error:
            if not is_intact(self.best):
                raise ValueError(
                    f"{error}, and {self.best.name} is missing or corrupt; start a new run from {self.weights.name} with "
                    "--model.init and another --run.out"
                ) from None
            print_main(printable(f"{error}: resuming from {self.best}"))
            return self.best
        return self.last

    def _unusable(self, error: OSError) -> ValueError:
        return ValueError(f"cannot write into the run folder {self.path} ({error.strerror}); change --run.out")

    def acquire(self) -> None:
        """Lock the folder against other training processes until `release` or the end of this process.

        It is a record lock: loader processes would inherit a `flock` and keep it after the run was killed.
        """
        if fcntl is None or self._lock_file is not None:
            return
        try:
            file = self.lock.open("a")
        except OSError as error:
            raise self._unusable(error) from None
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise ValueError(
                    f"{self.path} is locked: another process is training in it; wait for it, or change --run.out"
                ) from None
            return  # a file system without locks
        self._lock_file = file

    def release(self) -> None:
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def was_started_by(self, launch: str) -> bool:
        """Whether the run was started, or last resumed, by this launch of torchrun."""
        return bool(launch) and self.launch.is_file() and self.launch.read_text(errors="replace") == launch

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        content = {name: value for name, value in manifest.items() if name != _HASH}
        write_json(self.manifest, content | {_HASH: config_hash(content)})

    def read_manifest(self) -> dict[str, Any]:
        """The manifest; empty if it is missing or corrupt, because that must not stop a run."""
        if not self.manifest.exists():
            return {}
        try:
            found = parse_json(read_bytes(self.manifest), self.manifest)
            content = {name: value for name, value in found.items() if name != _HASH}
            if found.get(_HASH, config_hash(content)) == config_hash(content) and isinstance(found.get("continued", []), list):
                return content
        except (OSError, ValueError, AttributeError):  # AttributeError: it is no mapping
            pass
        self._set_aside(self.manifest)
        return {}

    def write_hub_config(self, content: dict[str, Any]) -> None:
        """Write timm's config.json with a hash of it, which timm ignores."""
        write_json(self.hub, content | {_HUB_HASH: config_hash(content)})

    def has_hub_config(self) -> bool:
        """Whether config.json is there and intact."""
        try:
            found = parse_json(read_bytes(self.hub), self.hub)
            return bool(found.pop(_HUB_HASH) == config_hash(found))
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return False

    def _set_aside(self, path: Path) -> None:
        """Keep a corrupt log under another name: it does not stop a run, and a new one takes its place."""
        aside = path.with_name(f"{path.name}.corrupt")
        with explain_write_errors(aside):
            aside.unlink(missing_ok=True)  # a link of that name would be written through
            shutil.copyfile(path, aside)
        say(f"{path} is corrupt: it was copied to {aside.name}, and the run continues without what cannot be read", error=True)

    def log(self, row: Mapping[str, Any]) -> None:
        with explain_write_errors(self.metrics), self.metrics.open("a") as file:
            file.write(seal_row({**row, "time": round(time.time(), 1)}) + "\n")

    def read_log(self) -> list[dict[str, Any]]:
        """The lines of the log but one that is being written; raises if one is corrupt."""
        *lines, _unfinished = read_bytes(self.metrics).split(b"\n") if self.metrics.exists() else [b""]
        rows = [row for row in map(_parse_row, lines) if row is not None]
        if len(rows) < len(lines):
            raise ValueError(f"{self.metrics} is corrupt: {counted(len(lines) - len(rows), 'line')} cannot be read")
        return rows

    def write_history(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Write the epochs as a table with a column for each metric."""
        names = list(dict.fromkeys(name for row in rows for name in row))

        def write(part: Path) -> None:
            with part.open("w", newline="") as file:
                table = csv.DictWriter(file, names, lineterminator="\n")
                table.writeheader()
                table.writerows({name: _short(value) for name, value in row.items()} for row in rows)

        write_atomically(self.history, write)

    def rewind(self, step: int, epochs: float) -> None:
        """Delete the log lines after the checkpoint, because the resumed run logs them again.

        An epoch is logged at its last step, so the step alone does not say whether the checkpoint includes it. The end of a
        process that died may have truncated the last line; if another line cannot be read, the log is corrupt.
        """
        if not self.metrics.exists():
            return
        *lines, _truncated = read_bytes(self.metrics).split(b"\n")
        rows = [_parse_row(line) for line in lines]
        if None in rows:
            self._set_aside(self.metrics)
        kept = [line for line, row in zip(lines, rows, strict=True) if row is not None and _is_before(row, step, epochs)]
        write_atomically(self.metrics, lambda part: part.write_bytes(b"".join(line + b"\n" for line in kept)))

    def _files(self) -> list[Path]:
        """The files a run writes; other files in the folder belong to the user."""
        files = [self.config, self.manifest, self.metrics, self.last, self.best, self.weights, self.hub, self.launch]
        return [*files, self.history, self.tracking, *self.artifacts]

    def _remove(self) -> None:
        for path in self._files():
            path.unlink(missing_ok=True)
        shutil.rmtree(self.tensorboard, ignore_errors=True)


def _short(value: float) -> str:
    return f"{value:.6g}"


def _parse_row(line: bytes) -> dict[str, Any] | None:
    """A line of the log; None if it is corrupt."""
    try:
        row = sealed_row(line, "")
        int(row["step"]), str(row["kind"]), int(row.get("epoch", 0))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return row


def _is_before(row: dict[str, Any], step: int, epochs: float) -> bool:
    """Whether a row was logged before a checkpoint with this many steps and epochs."""
    return int(row["step"]) <= step and (row["kind"] != "epoch" or float(row.get("epoch", 0)) <= epochs)
