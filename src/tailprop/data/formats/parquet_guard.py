"""Open parquet shards in a process of their own first: a corrupt footer aborts the process that reads it with pyarrow.

`check_shards` starts this file as a program, which imports nothing of this package, so it starts in a fraction of a second. It
makes the calls that the reader makes later, and prints a line for each shard that it has survived.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["check_shards"]


def check_shards(shards: Sequence[Path], images: Sequence[str], labels: Sequence[str]) -> None:
    """Raise for the first shard that aborts pyarrow. What pyarrow refuses in order is left to the reader, which explains it.

    Args:
        images: Possible names of the column with the images.
        labels: Possible names of the column with their labels.
    """
    wanted = json.dumps(dict(shards=list(map(str, shards)), images=list(images), labels=list(labels)))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", __file__]
    done = subprocess.run(command, input=wanted, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        place = min(done.stdout.count("\n"), len(shards) - 1)
        raise ValueError(f"{shards[place]} is corrupt (reading it ends the process); download it again")


def _main() -> None:
    wanted = json.loads(sys.stdin.read())
    for shard in wanted["shards"]:
        with contextlib.suppress(Exception):  # the reader meets and explains it again
            _read(shard, wanted["images"], wanted["labels"])
        print(flush=True)


def _read(shard: str, images: list[str], labels: list[str]) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetFile(shard) as file:
        found = [file.schema.column(place) for place in range(len(file.schema))]
        for group in range(file.metadata.num_row_groups):
            for place, column in enumerate(found):
                str((file.metadata.row_group(group).column(place), column.path, column.physical_type))
        names = file.schema_arrow.names
    label = next(name for name in labels if name in names)
    image = next(name for name in images if name in names)
    pq.read_table(shard, columns=[label])
    if any(column.path == f"{image}.path" for column in found):
        pq.read_table(shard, columns=[f"{image}.path"])


if __name__ == "__main__":
    _main()
