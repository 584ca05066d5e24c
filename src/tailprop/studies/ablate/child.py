"""A training process of a study: `python -m tailprop.studies.ablate.child SETTINGS.yaml`.

It trains as `tailprop train` does. Standard input is a pipe of the parent; when it is closed, the parent is gone, and the
process ends at once, so that a study that was killed leaves no process behind which still locks its run folder.
"""

import os
import sys
import threading
import time
from pathlib import Path

_PATIENCE = 30.0  # seconds that a process of a killed study may still need to end


def main(settings: str, folder: str) -> int:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    from tailprop.engine.run_folder import RunFolder

    _wait_for_lock(RunFolder(Path(folder)))
    import tailprop_cli

    return tailprop_cli.main(["train", settings])


def _exit_with_parent() -> None:
    os.read(0, 1)  # returns when the parent closes the pipe or dies
    os._exit(1)


def _wait_for_lock(folder: "RunFolder") -> None:  # type: ignore[name-defined] # noqa: F821 - imported after the thread started
    began = time.monotonic()
    while time.monotonic() - began < _PATIENCE:
        try:
            folder.acquire()
        except ValueError:  # locked
            time.sleep(0.1)
        else:
            folder.release()
            return


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
