"""A loop without Spark, in a process that tests kill: plan, write the offset, read, write the rows, commit.

    python -m tests.drivers.kinesis_loop ENDPOINT STREAM FOLDER

As in Spark, a restarted process first reads the batch of the last written offset again, then plans the next batch.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from lowmark.sources.kinesis import KinesisSource
from lowmark.sources.planning.offset import BatchOffset

from tests.worlds.kinesis_reading import Reading


def write(path: Path, value: Any) -> None:
    """Write a value as JSON; the file is durable on return."""
    part = path.with_suffix(".part")
    with part.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def newest(folder: Path) -> int:
    """The newest batch with a file, -1 without files."""
    return max((int(file.stem) for file in folder.glob("*.json")), default=-1)


def main(endpoint: str, stream: str, folder: Path) -> None:
    """Read until the process is killed."""
    offsets, commits, output = (folder / name for name in ("offsets", "commits", "output"))
    for each in (offsets, commits, output):
        each.mkdir(exist_ok=True)
    source = KinesisSource(
        streams=[stream], region="eu-west-1", endpoint_url=endpoint, discover_every="200 milliseconds",
        poll_every="50 milliseconds", reads_per_second=None, bytes_per_second=None,
    )  # fmt: skip
    with closing(Reading(source, max_rows=40)) as read:
        if (done := newest(commits)) >= 0:
            read.offset = json.loads((offsets / f"{done:06}.json").read_text())
        while True:
            batch = newest(commits) + 1
            planned = offsets / f"{batch:06}.json"
            if planned.exists():
                end = BatchOffset.find(json.loads(planned.read_text()))
                assert end is not None
            else:
                end = read.plan()
                if end == BatchOffset.find(read.offset):
                    continue
                write(planned, end.to_json())
            rows = [
                [row["shardId"], row["partitionKey"], int(row["data"])]
                for table in read.read(end).values()
                for row in table.to_pylist()
            ]
            write(output / f"{batch:06}.json", rows)
            read.commit(end)
            write(commits / f"{batch:06}.json", {})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
